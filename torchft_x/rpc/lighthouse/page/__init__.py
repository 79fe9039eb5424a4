"""The lighthouse's page and orders for people, over HTTP and over gRPC (docs/operate.md#watch-a-job).

* `recorder`: records events and makes the overview, at a limited rate, as bytes that all readers share.
* `orders`: checks kill, drain and resume, and sends them to supervisors or to a group server.
* `routes`: checks a request's Host and token, and answers it. Pure except for the recorder and the orders.
* `http`: connections, with h11 for the protocol, and limits on their number, size and time.
* `metrics`: the overview in Prometheus' format.
* `start`: chooses the page's address and starts its server.
The page itself is `torchft_x/observe/page.html`.
"""
