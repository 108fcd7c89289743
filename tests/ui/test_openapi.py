"""The description of the page's requests."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tailrace.coordinator.view.job_snapshot import JobSnapshot
from tailrace.ui.app import ORDERS, app_of
from tailrace.ui.guard import Guard
from tailrace.ui.openapi import openapi

FILE = Path(__file__).parents[2] / "docs" / "formats" / "openapi.json"


def test_the_description_in_the_docs_is_that_of_the_code() -> None:
    assert json.loads(FILE.read_text(encoding="utf-8")) == openapi(), (
        "write it anew: json.dumps(openapi(), indent=1, ensure_ascii=False)"
    )


def test_each_route_and_each_order_is_described() -> None:
    described = set(openapi()["paths"])
    routes = {
        path for route in app_of(list, Guard()).routes if (path := getattr(route, "path", "")).startswith("/api/jobs")
    }
    assert routes - {"/api/jobs/{job}/{order}"} <= described
    assert {f"/api/jobs/{{job}}/{order}" for order in ORDERS} <= described


def test_fields_have_their_docstrings_and_each_reference_leads_somewhere() -> None:
    schemas = openapi()["components"]["schemas"]
    shot = schemas["JobSnapshot"]
    assert set(shot["properties"]) == set(JobSnapshot.__struct_fields__)
    assert shot["properties"]["sentence"]["description"].startswith("What holds the job")
    names = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(openapi())))
    assert names <= set(schemas)
