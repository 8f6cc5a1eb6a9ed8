"""A web page that shows runs: it reads run folders and the /metrics of their services, and changes nothing."""
