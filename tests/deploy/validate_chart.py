"""Hold rendered manifests against the schemas of a version of Kubernetes: `make check-chart`.

    helm template ... | python tests/deploy/validate_chart.py 1.34.0

Unknown fields are errors. The schemas do not know the kinds of the Prometheus Operator; those are compared with the
fields that its documentation names.
"""

import sys
from typing import Any, Final

import kubernetes_validate
from ruamel.yaml import YAML

OPERATOR: Final = {
    "PodMonitor": {"selector", "podMetricsEndpoints"},
    "PrometheusRule": {"groups"},
}


def check(manifest: dict[str, Any], version: str) -> None:
    """Raise an error unless the manifest fits."""
    if manifest["kind"] in OPERATOR:
        assert manifest["apiVersion"] == "monitoring.coreos.com/v1"
        assert set(manifest["spec"]) == OPERATOR[manifest["kind"]]
        assert manifest["metadata"]["name"]
        return
    kubernetes_validate.validate(manifest, version, strict=True)


def main() -> None:
    """Check every document of standard input."""
    (version,) = sys.argv[1:]
    kinds = []
    for manifest in YAML(typ="safe").load_all(sys.stdin):
        check(manifest, version)
        kinds.append(manifest["kind"])
    assert "Deployment" in kinds
    print(f"Kubernetes {version}: {', '.join(kinds)}")


if __name__ == "__main__":
    main()
