"""Published returns of random play and of people, between which a run's returns are normalised."""
