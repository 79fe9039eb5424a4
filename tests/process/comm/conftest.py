from tests.torch.comm.conftest import meeting, nursery, pytest_generate_tests, store  # noqa: F401
