"""Who may look: a token outside of loopback, Host headers against DNS rebinding on it, and the headers of every answer.

Pure: decides from what a request says. A browser that comes with `?token=` gets a cookie and is sent on to the address
without it; programs send `Authorization: Bearer <token>`. The cookie holds a digest, for cookies reach other ports too.
"""

import hashlib
import hmac
from dataclasses import dataclass
from enum import StrEnum
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, quote, urlencode

from seedbed.services.tools.monitor.pages import is_loopback

MIN_TOKEN_CHARACTERS = 16
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self'; "
        "connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class AccessVerdict(StrEnum):
    """What to do with a request."""

    ADMIT = "admit"
    SIGN_IN = "sign_in"  # the token was right: set the cookie, go on without it in the address
    WRONG_HOST = "wrong_host"
    NO_TOKEN = "no_token"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is looked at, as sent: header values, and the query behind the `?`."""

    path: str
    query: str
    host: str
    cookie: str
    authorization: str


class Access:
    """Who may read the page: the rules of one server."""

    def __init__(self, *, token: str, is_local: bool, port: int) -> None:
        """`token` empty: nobody is asked for one. `is_local`: bound to loopback. `port`: makes the cookie's name."""
        self._token, self._is_local = token, is_local
        self.cookie_name = f"seedbed_monitor_{port}"  # cookies are shared by all ports of a host
        self.cookie_value = hmac.digest(token.encode(), b"seedbed monitor cookie", hashlib.sha256).hex()

    def judge(self, request: Request) -> AccessVerdict:
        """Admit or refuse. Secrets are compared in constant time."""
        scheme, _, credentials = request.authorization.partition(" ")
        if self._token and scheme.lower() == "bearer" and is_same(credentials.strip(), self._token):
            return AccessVerdict.ADMIT  # under any name, as Prometheus comes: no browser sends this by itself
        if self._is_local and not is_local_host(request.host):
            return AccessVerdict.WRONG_HOST
        if not self._token:
            return AccessVerdict.ADMIT
        given = dict(parse_qsl(request.query)).get("token")
        if given is not None:
            return AccessVerdict.SIGN_IN if is_same(given, self._token) else AccessVerdict.NO_TOKEN
        return (
            AccessVerdict.ADMIT if is_same(self._cookie(request.cookie), self.cookie_value) else AccessVerdict.NO_TOKEN
        )

    def _cookie(self, header: str) -> str:
        try:
            found = SimpleCookie(header).get(self.cookie_name)
        except CookieError:
            return ""
        return found.value if found is not None else ""

    def set_cookie(self) -> str:
        """The header that signs a browser in until it is closed."""
        return f"{self.cookie_name}={self.cookie_value}; Path=/; HttpOnly; SameSite=Strict"


def is_same(given: str, expected: str) -> bool:
    """Compare two secrets in a time that does not depend on where they differ."""
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())


def is_local_host(header: str) -> bool:
    """Whether a Host header names this machine by a loopback address or as localhost, with any port."""
    host, colon, port = header.strip().rpartition(":")
    if not colon or "]" in port:  # no port
        host = header.strip()
    elif not port.isdecimal():
        return False
    return is_loopback(host)


def without_token(path: str, query: str) -> str:
    """Return this address on the server without its token."""
    rest = urlencode([(name, value) for name, value in parse_qsl(query, keep_blank_values=True) if name != "token"])
    return quote("/" + path.lstrip("/\\")) + (f"?{rest}" if rest else "")
