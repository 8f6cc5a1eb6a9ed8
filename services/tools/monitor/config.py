"""[monitor]: what the web page shows and where it is served."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from seedbed.shared.runtime.config import RuntimeConfig, Section

TOKEN_VARIABLE = "SEEDBED_MONITOR__TOKEN"


class MonitorConfig(Section):
    """Where run folders lie and who may look."""

    runs: Path | None = Field(None, description="Folder of run folders; none: runs/ here, which may appear later.")
    host: str = Field("127.0.0.1", description="Address to bind; any but loopback asks for the token.")
    published: str = Field(
        "", description="In a container: the address on which its port is published, in place of host; empty: host's."
    )
    port: int = Field(8080, ge=0, le=65535, description="TCP port; 0: any free one.")
    published_port: int = Field(0, ge=0, le=65535, description="Under which number port is published; 0: its own.")
    token: str = Field("", repr=False, description="What a visitor must show; empty: made where one is needed.")

    inference: list[str] = Field(
        [], description="Inference services to ask for figures over the link, where their /metrics is out of reach."
    )
    learner: list[str] = Field([], description="Learners to ask likewise; with keys, of role monitor, on any machine.")
    token_file: Path | None = Field(
        None, description="File that holds the token, for Prometheus beside it; made, for its owner alone, if missing."
    )

    @field_validator("token", mode="before")
    @classmethod
    def _take_any_word(cls, value: Any) -> str:
        """A token that looks like a number or list is none; an error would show it."""
        return str(value)


class MonitorRuntime(RuntimeConfig):
    """[runtime] of the monitor: it serves its own metrics beside all others', so it needs no second address."""

    metrics_address: str = Field("", description="host:port of a page with its own metrics alone; empty: none.")


class MonitorSettings(BaseModel):
    """The sections that the monitor reads."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    monitor: MonitorConfig = MonitorConfig()
    runtime: MonitorRuntime = MonitorRuntime()
