"""HTTP to model servers: connections, proxies, routing, and what failed responses mean."""
