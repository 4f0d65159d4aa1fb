"""Print the queries of the dashboard as rules, so that promtool can parse them: `make check-alerts`."""

import json
import re
import sys

from ruamel.yaml import YAML

from tests.deploy.test_alerts import DASHBOARD, values

__all__ = ["rules"]


def rules() -> dict[str, object]:
    """Return a file of rules with every query, and with values for Grafana's variables."""
    queries = list(dict.fromkeys(values(json.loads(DASHBOARD.read_text()), "expr")))
    plain = [re.sub(r"\$pipeline\b", ".*", query.replace("$__rate_interval", "1m")) for query in queries]
    assert not [query for query in plain if "$" in query]
    return {"groups": [{"name": "dashboard", "rules": [{"record": f"q{n}", "expr": q} for n, q in enumerate(plain)]}]}


if __name__ == "__main__":
    YAML(typ="safe").dump(rules(), sys.stdout)
