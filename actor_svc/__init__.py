"""Steps environments; knows no network and no trajectory."""
