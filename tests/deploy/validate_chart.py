"""Hold rendered manifests against the schemas of a version of Kubernetes: `make check-chart`.

    helm template ... | cat - deploy/verify/cronjob.yaml | python tests/deploy/validate_chart.py 1.34.0 FOLDER

FOLDER has the definitions of the Prometheus Operator's kinds. Fields that a schema does not know are errors.
"""

import sys
from pathlib import Path
from typing import Any, Final

import jsonschema
import kubernetes_validate
from ruamel.yaml import YAML

OPERATOR: Final = "monitoring.coreos.com"


def strict(schema: Any) -> Any:
    """Return a schema that refuses unknown fields wherever it names the known ones."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: strict(each) for name, each in schema.items()}
    if "properties" in made and made.get("type") == "object":
        made.setdefault("additionalProperties", False)
    return made


def of_operator(manifest: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the strict schema of a kind of the Prometheus Operator, without the parts that the API server checks."""
    definition = YAML(typ="safe").load(folder / f"{OPERATOR}_{manifest['kind'].lower()}s.yaml")
    group, _, version = manifest["apiVersion"].partition("/")
    assert group == OPERATOR
    (schema,) = [each["schema"] for each in definition["spec"]["versions"] if each["name"] == version]
    made: dict[str, Any] = strict(schema["openAPIV3Schema"])
    made["properties"]["metadata"] = {"type": "object", "required": ["name"]}
    return made


def main() -> None:
    """Check every document of standard input."""
    version, folder = sys.argv[1], Path(sys.argv[2])
    kinds = []
    for manifest in YAML(typ="safe").load_all(sys.stdin):
        kinds.append(manifest["kind"])
        if manifest["apiVersion"].startswith(OPERATOR):
            # Not `jsonschema.validate`, which refuses Go's regular expressions in the schema.
            jsonschema.Draft202012Validator(of_operator(manifest, folder)).validate(manifest)
        else:
            kubernetes_validate.validate(manifest, version, strict=True)
    assert {"Deployment", "CronJob"} <= set(kinds)
    print(f"Kubernetes {version}: {', '.join(kinds)}")


if __name__ == "__main__":
    main()
