"""A Hub on loopback: as much of its protocol as load_dataset, from_pretrained, snapshot_download and uploads ask for.

Small files lie as LFS keeps them or as git does, under a commit's sha; faults are put before them at will.
"""

import base64
import hashlib
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

LFS_ENDINGS = (".safetensors", ".bin", ".parquet")
API = re.compile(r"/api/(?P<kind>models|datasets)/(?P<name>[^/]+/[^/]+)(?:/(?P<call>[a-z-]+)/(?P<rest>.+))?")
FILE = re.compile(r"/(?P<kind>datasets/)?(?P<name>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")
LFS_BATCH = re.compile(r"/(?P<name>[^/]+/[^/]+)\.git/info/lfs/objects/batch")
STORED = re.compile(r"/lfs/(?P<oid>[0-9a-f]{64})")


@dataclass(frozen=True)
class Repository:
    """kind: models or datasets. sha: its commit, also called main. files: contents by path. gated: needs a token.

    summaries: of the commits that were uploaded.
    """

    kind: str
    name: str
    sha: str
    files: dict[str, bytes]
    gated: bool = False
    private: bool = False
    summaries: tuple[str, ...] = ()


@dataclass
class Fault:
    """What goes wrong with requests whose line "GET /path" the pattern `where` is found in, `times` times.

    status: this answer in place of the right one. cut: the body ends half-way; reset: and the connection is torn off.
    delay_s: the answer waits so long.
    """

    where: str
    times: int = 1000
    status: int | None = None
    cut: bool = False
    reset: bool = False
    delay_s: float = 0.0


@dataclass
class Hub:
    """repositories: what is served, by (kind, name). faults: the first that fits counts. requests: the lines so far.

    uploaded: contents that no commit names yet, by sha256. Uploads need `token`.
    """

    repositories: dict[tuple[str, str], Repository]
    endpoint: str = ""
    store: str = ""
    faults: list[Fault] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    uploaded: dict[str, bytes] = field(default_factory=dict)
    token: str = "hf_of_a_test"

    def fault(self, line: str) -> Fault | None:
        """The fault that befalls a request; it is used up by one."""
        for fault in self.faults:
            if fault.times > 0 and re.search(fault.where, line):
                fault.times -= 1
                return fault
        return None

    def stored(self, oid: str) -> bytes | None:
        contents = (content for repo in self.repositories.values() for content in repo.files.values())
        return next((content for content in contents if _sha256(content) == oid), None)


@contextmanager
def serve_hub(*repositories: Repository) -> Iterator[Hub]:
    """Serves `repositories` on a free port of 127.0.0.1 in threads of this process until the block ends."""
    hub = Hub({(repo.kind, repo.name): repo for repo in repositories})
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        hub.endpoint = f"http://127.0.0.1:{server.server_port}"
        hub.store = f"http://localhost:{server.server_port}"  # another origin, as the real one is
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self):
        self._answer()

    do_HEAD = do_GET

    def do_POST(self):
        self._answer()

    do_PUT = do_POST

    def log_message(self, *_):
        pass

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        line = f"{self.command} {path}"
        self.body = self._read_body()
        self.hub.requests.append(line)
        self.fault = self.hub.fault(line) or Fault("")
        time.sleep(self.fault.delay_s)
        if self.fault.status:
            self._send(self.fault.status, b"{}")
        elif path == "/":
            self._send(200, b"")
        elif self.command == "PUT" and (found := STORED.fullmatch(path)):
            self.hub.uploaded[found["oid"]] = self.body
            self._send(200, b"")
        elif self.command == "POST":
            self._receive(path)
        elif found := STORED.fullmatch(path):
            content = self.hub.stored(found["oid"])
            self._send_content(content, {"ETag": f'"{found["oid"][:32]}"'})  # the store's own, no checksum
        elif found := FILE.fullmatch(path):
            self._resolve(found)
        elif found := API.fullmatch(path):
            self._api(found)
        else:
            self._refuse(404, "EntryNotFound", "Not found")

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chunks = iter(lambda: self.rfile.read(int(self.rfile.readline(), 16) + 2)[:-2], b"")
        return b"".join(chunks)

    def _receive(self, path: str) -> None:
        """Answers the requests of an upload: a new repository, which files LFS keeps, and the commit."""
        if self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            self._refuse(401, "", "Invalid username or password.")
        elif path == "/api/validate-yaml":
            self._send_json({"errors": [], "warnings": []})
        elif path == "/api/repos/create":
            self._create(json.loads(self.body))
        elif found := LFS_BATCH.fullmatch(path):
            objects = json.loads(self.body)["objects"]
            for each in objects:
                each["actions"] = {"upload": {"href": f"{self.hub.store}/lfs/{each['oid']}"}}
            self._send_json({"transfer": "basic", "objects": objects})
        elif (found := API.fullmatch(path)) and found["call"] == "preupload":
            files = [file["path"] for file in json.loads(self.body)["files"]]
            modes = {True: "lfs", False: "regular"}
            answers = [{"path": f, "uploadMode": modes[f.endswith(LFS_ENDINGS)], "shouldIgnore": False} for f in files]
            self._send_json({"files": answers})
        elif found and found["call"] == "commit":
            self._commit(found["name"])
        else:
            self._refuse(404, "EntryNotFound", "Not found")

    def _create(self, asked: dict) -> None:
        name = f"{asked['organization']}/{asked['name']}"
        url = {"url": f"{self.hub.endpoint}/{name}"}
        if ("models", name) in self.hub.repositories:
            self._send(409, json.dumps({"error": "You already created this model repo"} | url).encode())
            return
        private = asked.get("visibility") == "private"
        self.hub.repositories["models", name] = Repository("models", name, "0" * 40, {}, private=private)
        self._send_json(url)

    def _commit(self, name: str) -> None:
        header, *added = [json.loads(line) for line in self.body.splitlines()]
        files = {}
        for item in added:
            value = item["value"]
            is_lfs = item["key"] == "lfsFile"
            files[value["path"]] = self.hub.uploaded[value["oid"]] if is_lfs else base64.b64decode(value["content"])
        older = self.hub.repositories["models", name]
        sha = hashlib.sha1(self.body).hexdigest()
        summaries = (*older.summaries, header["value"]["summary"])
        new = replace(older, sha=sha, files=older.files | files, summaries=summaries)
        self.hub.repositories["models", name] = new
        self._send_json({"success": True, "commitOid": sha, "commitUrl": f"{self.hub.endpoint}/{name}/commit/{sha}"})

    def _repository(self, kind: str, name: str, revision: str) -> Repository | None:
        """The repository at a revision; None, and the Hub's way to say so, where there is none."""
        repo = self.hub.repositories.get((kind, name))
        if repo is None:
            self._refuse(401, "RepoNotFound", "Repository not found")  # as to all who bring no token
        elif revision not in (repo.sha, "main"):
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        else:
            return repo
        return None

    def _resolve(self, found: re.Match) -> None:
        kind = "datasets" if found["kind"] else "models"
        repo = self._repository(kind, found["name"], found["revision"])
        if repo is None:
            return
        if repo.gated and "Authorization" not in self.headers:
            self._refuse(401, "GatedRepo", f"Access to model {repo.name} is restricted.")
            return
        commit = {"X-Repo-Commit": repo.sha}
        content = repo.files.get(found["path"])
        if content is None:
            self._refuse(404, "EntryNotFound", "Entry not found", commit)
        elif not found["path"].endswith(LFS_ENDINGS):
            self._send_content(content, commit | {"ETag": f'"{_git_oid(content)}"'})
        else:
            oid = _sha256(content)
            linked = {"X-Linked-Etag": f'"{oid}"', "X-Linked-Size": str(len(content))}
            self._send(302, b"", commit | linked | {"Location": f"{self.hub.store}/lfs/{oid}"})

    def _api(self, found: re.Match) -> None:
        revision, _, folder = (found["rest"] or "main").partition("/")
        repo = self._repository(found["kind"], found["name"], revision)
        if repo is None:
            return
        recursive = "recursive=true" in self.path.lower()
        if found["call"] in (None, "revision"):
            self._send_json(_info(repo))
        elif found["call"] == "tree" and (entries := _entries(repo, folder, recursive=recursive)):
            self._send_json(entries)
        else:
            self._refuse(404, "EntryNotFound", "Not found")

    def _send_json(self, answer) -> None:
        self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _refuse(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        body = json.dumps({"error": message}).encode()
        self._send(status, body, (headers or {}) | {"X-Error-Code": code, "X-Error-Message": message})

    def _send_content(self, content: bytes, headers: dict[str, str]) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not asked:
            self._send(200, content, headers | {"Accept-Ranges": "bytes"})
            return
        first, last = int(asked[1]), min(int(asked[2] or len(content) - 1), len(content) - 1)
        span = f"bytes {first}-{last}/{len(content)}"
        self._send(206, content[first : last + 1], headers | {"Content-Range": span})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if self.fault.cut or self.fault.reset else body)
        self.close_connection = self.fault.cut or self.fault.reset
        if self.fault.reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()


def _info(repo: Repository) -> dict:
    return {
        "_id": repo.sha[:24],
        "id": repo.name,
        "modelId": repo.name,
        "sha": repo.sha,
        "private": False,
        "gated": "auto" if repo.gated else False,
        "disabled": False,
        "downloads": 0,
        "likes": 0,
        "tags": [],
        "lastModified": "2024-02-19T11:06:12.000Z",
        "createdAt": "2022-03-02T23:29:04.000Z",
        "siblings": [{"rfilename": path} for path in repo.files],
    }


def _entries(repo: Repository, folder: str, *, recursive: bool) -> list[dict]:
    """Files and folders in `folder`, "" being the whole; with `recursive` those in its folders too."""
    start = f"{folder}/" if folder else ""
    files = [path for path in repo.files if path.startswith(start)]
    folders = {str(above) for path in files for above in PurePosixPath(path).parents if str(above).startswith(start)}
    folders -= {"."}
    entries = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": path} for path in sorted(folders)]
    entries += [_file_entry(path, repo.files[path]) for path in files]
    return [entry for entry in entries if recursive or "/" not in entry["path"].removeprefix(start)]


def _file_entry(path: str, content: bytes) -> dict:
    entry = {"type": "file", "oid": _git_oid(content), "size": len(content), "path": path}
    if path.endswith(LFS_ENDINGS):
        entry["lfs"] = {"oid": _sha256(content), "size": len(content), "pointerSize": 134}
    return entry


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
