"""A Ray cluster of two nodes on this machine, until standard input closes. Prints its address; obeys the lines `remove`
(kill the second node) and `add` (start it again), and prints `done` after each. Without --store, workers of each node
use a store of its own, in a folder of the first argument.

In a process of its own: Ray keeps global state and would leave threads in the process of the tests.
"""

import os
import sys
import tempfile
from typing import Any


def main() -> None:
    from ray.cluster_utils import Cluster

    cpus, home = 2, "127.0.0.1"
    stores = [{"HOLDFAST_STORE": os.path.join(sys.argv[1], name)} for name in ("node-1", "node-2")]
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as folder:
        head: dict[str, Any] = {"num_cpus": cpus, "include_dashboard": False, "temp_dir": folder}
        cluster = Cluster(initialize_head=True, head_node_args={**head, "node_ip_address": home, "env_vars": stores[0]})
        try:
            second = cluster.add_node(num_cpus=cpus, node_ip_address=home, env_vars=stores[1])
            print(cluster.address, flush=True)
            for line in sys.stdin:
                if line.strip() == "remove":
                    cluster.remove_node(second, allow_graceful=False)
                else:
                    second = cluster.add_node(num_cpus=cpus, node_ip_address=home, env_vars=stores[1])
                print("done", flush=True)
        finally:
            cluster.shutdown()  # type: ignore[no-untyped-call] # Ray has few types


main()
