"""A schema registry for tests, with the documented interface of Confluent's: schemas by id and by subject. A subject takes a
schema of Avro that can read what its newest one has written."""

from __future__ import annotations

import io
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import fastavro
from fastavro.utils import generate_one


class SchemaRegistryServer:
    """The registry. `away` has it answer each request with an error of the server."""

    def __init__(self, login: str | None = None) -> None:
        self.schemas: list[dict[str, Any]] = []
        """Schemas by id, from 1."""
        self.subjects: dict[str, list[int]] = {}
        self.requests: list[str] = []
        self.away, self.login = False, login
        made = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._respond(None)

            def do_POST(self) -> None:
                self._respond(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def _respond(self, body: Any) -> None:
                made.requests.append(f"{self.command} {self.path}")
                status, answer = made.answer(self.command, self.path, body, self.headers.get("Authorization"))
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, verb: str, path: str, body: Any, login: str | None) -> tuple[int, Any]:
        if self.away:
            return 503, {"error_code": 503, "message": "not now"}
        if self.login is not None and login != self.login:
            return 401, {"error_code": 401, "message": "Unauthorized"}
        match [unquote(one) for one in urlsplit(path).path.strip("/").split("/")]:
            case ["schemas", "types"]:
                return 200, ["AVRO", "PROTOBUF"]
            case ["schemas", "ids", id] if verb == "GET":
                if not 0 < int(id) <= len(self.schemas):
                    return 404, {"error_code": 40403, "message": f"Schema {id} not found"}
                return 200, {**self.schemas[int(id) - 1], "id": int(id)}
            case ["subjects", subject, "versions"] if verb == "POST":
                return self._register(subject, body)
            case ["subjects", subject, "versions", version] if verb == "GET":
                known = self.subjects.get(subject, [])
                number = len(known) if version in ("latest", "-1") else int(version)
                if not 0 < number <= len(known):
                    return 404, {"error_code": 40402, "message": "Version not found"}
                id = known[number - 1]
                return 200, {**self.schemas[id - 1], "subject": subject, "version": number, "id": id}
        return 404, {"error_code": 404, "message": f"{verb} {path}"}

    def _register(self, subject: str, body: Any) -> tuple[int, Any]:
        schema = {name: body[name] for name in ("schema", "schemaType", "references") if body.get(name)}
        known = self.subjects.setdefault(subject, [])
        if schema in self.schemas:
            id = self.schemas.index(schema) + 1
        else:
            if (
                known
                and body.get("schemaType", "AVRO") == "AVRO"
                and (why := _gap(self.schemas[known[-1] - 1], schema))
            ):
                return 409, {"error_code": 409, "message": f"Schema being registered is incompatible: {why}"}
            self.schemas.append(schema)
            id = len(self.schemas)
        if id not in known:
            known.append(id)
        return 200, {"id": id}


def _gap(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Why a schema cannot read what another one has written; empty if it can."""
    writer, reader = (fastavro.parse_schema(json.loads(one["schema"])) for one in (before, after))
    out = io.BytesIO()
    fastavro.schemaless_writer(out, writer, generate_one(writer))
    out.seek(0)
    try:
        fastavro.schemaless_reader(out, writer, reader)
    except fastavro.read.SchemaResolutionError as error:
        return str(error)
    return ""
