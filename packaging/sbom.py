"""The bill of materials (CycloneDX) of a folder of installed packages. Runs with the pinned tools' Python.

`sbom.py SITE TARGET NAME VERSION [NAME=VERSION ...]`: what is installed in SITE, and what else is in the archive.
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.factory.license import LicenseFactory  # type: ignore[import-not-found]
from cyclonedx.model.bom import Bom  # type: ignore[import-not-found]
from cyclonedx.model.component import Component, ComponentType  # type: ignore[import-not-found]
from cyclonedx.output import make_outputter  # type: ignore[import-not-found]
from cyclonedx.schema import OutputFormat, SchemaVersion  # type: ignore[import-not-found]
from packageurl import PackageURL  # type: ignore[import-not-found]


def bom_of(site: Path, name: str, version: str, *others: str) -> Bom:
    """Return the bill of a site's distributions and of others, given as NAME=VERSION (sources of Debian)."""
    parts = []
    for one in distributions(path=[str(site)]):
        licence = one.metadata["License-Expression"]
        parts.append(Component(
            type=ComponentType.LIBRARY, name=one.name, version=one.version, bom_ref=f"pypi:{one.name}",
            licenses=[LicenseFactory().make_from_string(licence)] if licence else [],
            purl=PackageURL("pypi", None, one.name.lower().replace("_", "-"), one.version),
        ))
    for other in others:
        package, _, its = other.partition("=")
        parts.append(Component(type=ComponentType.LIBRARY, name=package, version=its, bom_ref=f"deb:{package}",
                               purl=PackageURL("deb", "debian", package, its, {"arch": "source"})))
    bom = Bom(components=parts, serial_number=uuid5(NAMESPACE_URL, f"{name}-{version}"))
    bom.metadata.component = Component(type=ComponentType.APPLICATION, name=name, version=version, bom_ref=name)
    bom.metadata.timestamp = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), UTC)
    bom.register_dependency(bom.metadata.component, parts)
    return bom


if __name__ == "__main__":
    bill = bom_of(Path(sys.argv[1]), *sys.argv[3:])
    text = make_outputter(bill, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=1)
    Path(sys.argv[2]).write_text(text + "\n")
