"""The metrics of every service."""

from seedbed.shared.figures.declare import counter, gauge

INFO = gauge("service_info", "Always 1; its labels name this process.", "service", "name", "incarnation")
LOOP_LAG = gauge("loop_lag_seconds", "How late the loop's last timer was.")
REFUSED_PEERS = counter("refused_peers", "Peers and keys not let in.", "reason")
