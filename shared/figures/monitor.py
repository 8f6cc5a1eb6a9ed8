"""The metrics that the monitor adds to those of the services."""

from seedbed.shared.figures.declare import counter, gauge

UP = gauge("monitor_up", "1 if the service answers.", "run", "service", "name")
ALERTS = gauge("monitor_alerts", "Alerts now.", "run", "alert", "level")
REFUSED_MESSAGES = counter("monitor_refused_messages", "Answers that were no reports.")
