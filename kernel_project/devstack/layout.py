"""Where the embedded stack lives: its folders, sockets and ports, and the URLs that follow from them.

Standard library only: the settings import this before Django is there. Nothing here starts anything.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

PROJECT_ROOT = Path(__file__).resolve().parents[2]
SOCKET_PATH_MAX = 100  # bytes; Linux allows 107 for the whole path of a unix socket
PORT_NAMES = ("web", "temporality", "valkey", "temporal", "temporal_ui")


@dataclass(frozen=True)
class Layout:
    """One embedded stack. Two stacks with different `var` and ports live side by side."""

    var: Path
    web_port: int = 8000
    temporality_port: int = 8100
    valkey_port: int = 56379
    temporal_port: int = 57233
    temporal_ui_port: int = 58233

    @classmethod
    def from_environment(cls, environ: dict[str, str] | None = None) -> Layout:
        """Read KERNEL_VAR and KERNEL_<NAME>_PORT (names in PORT_NAMES). Raises ValueError with the variable's name."""
        environ = dict(os.environ) if environ is None else environ
        ports = {}
        for name in PORT_NAMES:
            text = environ.get(variable := f"KERNEL_{name.upper()}_PORT")
            if text is not None:
                if not text.isdigit() or not 0 < int(text) < 65536:
                    raise ValueError(f"{variable}={text!r} is not a port number between 1 and 65535")
                ports[f"{name}_port"] = int(text)
        return cls(var=Path(environ.get("KERNEL_VAR", PROJECT_ROOT / "var")).resolve(), **ports)

    @property
    def postgres_data(self) -> Path:
        return self.var / "postgres"

    @property
    def postgres_socket_dir(self) -> Path:
        """A folder for the unix socket, short enough for the kernel's limit."""
        wanted = self.var / "sockets"
        if len(bytes(wanted)) + len("/.s.PGSQL.5432") <= SOCKET_PATH_MAX:
            return wanted
        return Path("/tmp") / f"agent-kernel-{hashlib.sha256(bytes(self.var)).hexdigest()[:12]}"  # noqa: S108

    def database_url(self, name: str) -> str:
        return f"postgresql://postgres@{quote(str(self.postgres_socket_dir), safe='')}:5432/{name}"

    @property
    def redis_url(self) -> str:
        return f"redis://127.0.0.1:{self.valkey_port}/0"

    @property
    def temporal_address(self) -> str:
        return f"127.0.0.1:{self.temporal_port}"

    @property
    def temporality_url(self) -> str:
        return f"http://127.0.0.1:{self.temporality_port}"

    @property
    def web_url(self) -> str:
        return f"http://127.0.0.1:{self.web_port}"

    @property
    def temporal_ui_url(self) -> str:
        return f"http://127.0.0.1:{self.temporal_ui_port}"

    def environment(self) -> dict[str, str]:
        """The variables that lead a process to this stack's servers and to no other."""
        return {
            "KERNEL_VAR": str(self.var),
            **{f"KERNEL_{name.upper()}_PORT": str(getattr(self, f"{name}_port")) for name in PORT_NAMES},
            "DATABASE_URL": self.database_url("kernel"),
            "TEMPORALITY_DATABASE_URL": self.database_url("temporality"),
            "REDIS_URL": self.redis_url,
            "TEMPORAL_ADDRESS": self.temporal_address,
            "TEMPORAL_UI_URL": self.temporal_ui_url,
            "TEMPORALITY_URL": self.temporality_url,
            "ARTIFACT_URL": (self.var / "artifacts").as_uri(),
        }
