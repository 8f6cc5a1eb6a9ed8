"""What a shell offers behind Tab: experiments, runs and settings. Each imports what it needs when it is asked."""

TYPES = frozenset(("integer", "number", "text", "path", "table"))  # of a setting's values: no words to offer

Offers = list[tuple[str, str]]  # (word, what it is)


def offer_experiments(incomplete: str) -> Offers:
    """Return the experiments whose names begin with what was typed."""
    from seedbed.services.tools.cli.listing import list_experiments

    found = [(item.name, item.about) for item in list_experiments()]
    return [offer for offer in found if offer[0].startswith(incomplete)]


def offer_runs(incomplete: str) -> Offers:
    """Runs under runs/ whose names begin so, the newest first, and the experiments that they are of."""
    from seedbed.services.tools.cli.listing import list_runs

    runs = [item for item in list_runs(incomplete) if item.folder]
    names = dict.fromkeys(item.experiment for item in runs if item.experiment.startswith(incomplete))
    newest = [(name, "its newest run") for name in names if name]
    return [*newest, *((item.name, item.status.state.value) for item in runs)]


def offer_settings(incomplete: str) -> Offers:
    """Settings as `section.key=`, and their values.

    The only one that fits is offered with its value, too: a single offer would be closed with a space behind its `=`.
    """
    from seedbed.services.tools.cli.settings import list_settings

    name, equals, _ = incomplete.partition("=")
    known = [item for item in list_settings() if "NAME" not in item.name]
    if not equals:
        known = [item for item in known if item.name.startswith(incomplete)]
        offers = [(f"{item.name}=", item.description) for item in known]
        if len(known) > 1:
            return offers
        return [*offers, *((f"{item.name}={item.default}", "as it is now") for item in known if item.default)]
    values = [value for item in known if item.name == name for value in item.values.split(" | ")]
    words = (f"{name}={value}" for value in values if value not in TYPES and not value.startswith("list of"))
    return [(word, "") for word in words if word.startswith(incomplete)]


def offer_words(incomplete: str) -> Offers:
    """What a service's words can be: an experiment in the first place, then settings."""
    return [*offer_experiments(incomplete), *offer_settings(incomplete)]
