"""What the monitor adds to the metrics of the services that it passes on."""

from seedbed.shared.figures.declare import counter, gauge

UP = gauge("monitor_up", "1 if the service answers.", "run", "service", "name")
ALERTS = gauge("monitor_alerts", "Alerts now.", "run", "alert", "level")
REFUSED_MESSAGES = counter("monitor_refused_messages", "Answers that were no reports.")
