"""Commands, settings, files and log lines that five guides to torchft give their readers, quoted."""

from __future__ import annotations

LIGHTHOUSE = "RUST_BACKTRACE=1 uv run torchft_lighthouse --bind=10.0.0.1:29510 --min_replicas 1 --quorum_tick_ms 100 --join_timeout_ms 10000"
TITAN = (
    "TORCHFT_LIGHTHOUSE=http://10.0.0.1:29510 NGPU=8 LOCAL_ADDR=10.0.0.2 MASTER_ADDR=10.0.0.2 MASTER_PORT=29500 NNODES=1 "
    "ISHOST=yes CONFIG_FILE=./models/llama3/train_configs/llama3_8b.toml uv run ./run_train.sh "
    "--fault_tolerance.enable --fault_tolerance.replica_id=0 --fault_tolerance.group_size=2"
)
TORCHRUN = (
    "TORCHFT_LIGHTHOUSE=http://localhost:29510 torchrun --master_port 29501 --nnodes 1 --nproc_per_node 1 train_ddp.py",
    "CUDA_VISIBLE_DEVICES=0 TORCHFT_LIGHTHOUSE=http://localhost:29510 torchrun --master_port=29600 --nnodes=1 --nproc_per_node=1 -- train_ddp.py",
    "CUDA_VISIBLE_DEVICES=1 TORCHFT_LIGHTHOUSE=http://localhost:29510 torchrun --master_port=29601 --nnodes=1 --nproc_per_node=1 -- train_ddp.py",
)
PRIMUS = (
    "bash examples/run_pretrain.sh --training.steps=1000 --fault_tolerance.enable --fault_tolerance.replica_id=0 "
    "--fault_tolerance.group_size=2 --training.mock_data=True"
)
COMMANDS = (
    LIGHTHOUSE,
    "RUST_BACKTRACE=1 torchft_lighthouse --min_replicas 1 --quorum_tick_ms 100 --join_timeout_ms 100000",
    TITAN,
    "NGPU=2 CUDA_VISIBLE_DEVICES=0,1",
    "--data_parallel_replica_degree=2 --data_parallel_shard_degree=4",
    *TORCHRUN,
    "REPLICA_GROUP_ID=0",
    "NUM_REPLICA_GROUPS=2",
    "torchx run",
    "USE_STREAMING=True torchx run ./torchft/torchx.py:hsdp --script=train_diloco.py",
    "pip install torchft-nightly",
    "pip install torchft-nightly[dev]",
    "pip install -r requirements.txt",
    "hf download meta-llama/Llama-3.1-8B",
    "WANDB_API_KEY=key",
    "sbatch -N 2 llama3.1-8b-pretraining.sh",
    "sbatch --array=0-1 llama3.1-8b-pretraining-torchft.sh",
    "squeue",
    "scancel",
    "scontrol update NodeName=worker-0 State=DOWN",
    "tail ./outputs/torchft/tft-53/tft-53_1.out",
    PRIMUS,
)
TOML = """
[fault_tolerance]
enable = true
sync_steps = 10
num_fragments = 1
semi_sync_method = "diloco"
process_group = "gloo"
process_group_timeout_ms = 10000
rank0_synchronization_only = false
copy_pseudogradients_to_cpu = true
"""
FILES = (".torchxconfig", "torchx.py", "parameter_server_test.py", "diloco_train_loop", "local_sgd_train_loop")
LOG_LINES = (
    "Detected quorum change, bumping quorum_id to",
    "Quorum! Quorum { quorum_id: 2, participants: [QuorumMember { replica_id:",
    "reconfiguring for quorum_id=5",
    "peers need recovery from us [1]",
    "should_commit=True enough_replicas=True",
    "should_commit=False enough_replicas=True, errored=aborted",
    "Connection reset by peer",
    "Rank 0 is connected to 0 peer ranks. Expected: 0",
    "Loading the FT checkpoint at step 247",
    "Finished loading the FT checkpoint in 0.56 seconds",
    "Training starts at step 249",
    "launching replica 1 (attempt 1) on worker-0",
)
