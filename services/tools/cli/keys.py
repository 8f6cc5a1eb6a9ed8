"""`seedbed keys`: make, list and revoke the keys of the links. Secrets are written to files and never shown."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from seedbed.shared.net.roles import Role

if TYPE_CHECKING:
    from seedbed.shared.net.keyring import Entry

commands = typer.Typer(help="Make, list and revoke the keys of the links between machines.", no_args_is_help=True)
console = Console()

SHORT = 8  # characters of a public key that tell it from others

FolderOption = Annotated[Path, typer.Option("--folder", help="The folder that holds the keys of all roles.")]
FOLDER = Path("keys")


@commands.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Made if it is not there.")] = FOLDER,
    keep: Annotated[bool, typer.Option("--keep", help="Keep what is there, make what is missing.")] = False,
) -> int:
    """Make one key for each role: [bold]seedbed keys init keys[/]."""
    from seedbed.shared.net.keyring import Keyring

    made = Keyring(folder).complete() if keep else Keyring(folder).init()
    _tell_files(made)
    if keep:
        _tell(f"{folder} has the keys of all roles")
        return 0
    _tell(f"Give each service runtime.keys={folder}, or on a machine of its own only the folder of its role.")
    return 0


@commands.command()
def new(
    role: Annotated[Role, typer.Argument(help="Whose key.")],
    name: Annotated[str, typer.Argument(help="Of the key's owner, for logs and for revoking it.")],
    folder: FolderOption = FOLDER,
) -> int:
    """Make a key: [bold]seedbed keys new environment robot-7[/]. Nothing is ever overwritten."""
    from seedbed.shared.net.keyring import Keyring

    made = Keyring(folder).new(role, name)
    _tell_files(made)
    if role is Role.ENVIRONMENT:
        own = made[0].parent
        _tell(f"Take {own} to the machine that uses it, and start it there with runtime.keys={own.name}")
    return 0


@commands.command("list")
def show(folder: FolderOption = FOLDER) -> int:
    """Show whose keys there are and what each opens."""
    from seedbed.shared.net.keyring import Keyring

    console.print(render(Keyring(folder).entries()))
    return 0


@commands.command()
def revoke(
    name: Annotated[str, typer.Argument(help="Of the key; role:name where several roles have it.")],
    folder: FolderOption = FOLDER,
) -> int:
    """Take a key out of use; servers that read this folder end its sessions within about a second."""
    from seedbed.shared.net.keyring import Keyring

    key = Keyring(folder).revoke(name)
    _tell(f"{key.user_id} is revoked. A server that reads another copy of this folder follows once")
    _tell(f"{key.role}-{key.name}.pub is gone from its clients/ too.")
    return 0


def render(entries: "Sequence[Entry]") -> RenderableType:
    """A table with a line for each key."""
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    for heading in ("role", "name", "public key", "what for"):
        table.add_column(heading, no_wrap=True)
    for entry in entries:
        purpose = "server" if entry.is_server else f"opens {', '.join(entry.opens) or 'nothing yet'}"
        table.add_row(entry.key.role, entry.key.name, Text(entry.key.public[:SHORT] + "…"), purpose)
    return table


def _tell_files(files: Sequence[Path]) -> None:
    for file in files:
        _tell(f"made {file}")


def _tell(text: str) -> None:
    """Print a text as it is, because names and folders may look like markup."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
