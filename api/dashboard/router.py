"""``/dashboard``: one self-contained page without data; it reads the JSON routes with the key a person types in."""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, RedirectResponse

router = APIRouter(tags=["health"])

# The page may talk to this server and to nothing else.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}


@router.get("/dashboard", response_class=HTMLResponse)
async def get_dashboard() -> HTMLResponse:
    """A person's view of success, versions, changes and the learner."""
    return HTMLResponse(PAGE, headers=_HEADERS)


@router.get("/", include_in_schema=False)
async def get_root() -> RedirectResponse:
    return RedirectResponse("/dashboard")


PAGE = files("api.dashboard").joinpath("page.html").read_text(encoding="utf-8")
