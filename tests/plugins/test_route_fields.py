"""Adapters of FastAPI's parameters: equal ones are shared, and what differs in any part is not."""

from typing import Annotated, Any

import fastapi._compat.v2 as fields
import httpx
import pytest
from fastapi import FastAPI, Query

from tests.plugins.route_fields import make_once


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> FastAPI:
    monkeypatch.setattr(fields.ModelField, "__post_init__", fields.ModelField.__post_init__)
    make_once(fields)
    app = FastAPI()

    @app.get("/few")
    def few(n: Annotated[int, Query(le=10)] = 1) -> list[int]:
        return [n]

    @app.get("/many")
    def many(n: Annotated[int, Query(le=100)] = 2) -> list[int]:
        return [n]

    @app.get("/again")
    def again(n: Annotated[int, Query(le=10)] = 1) -> list[int]:
        return [n]

    return app


def adapter(app: FastAPI, path: str) -> Any:
    (route,) = [route for route in app.routes if getattr(route, "path", "") == path]
    return route.dependant.query_params[0]._type_adapter  # type: ignore[attr-defined]


def test_parameters_that_are_equal_share_their_adapter(app: FastAPI) -> None:
    assert adapter(app, "/few") is adapter(app, "/again")
    assert adapter(app, "/few") is not adapter(app, "/many")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("address", "status", "answer"),
    [
        ("/few", 200, [1]),
        ("/few?n=11", 422, None),
        ("/many", 200, [2]),
        ("/many?n=11", 200, [11]),
        ("/again?n=11", 422, None),
    ],
)
async def test_each_route_has_its_own_bounds_and_default(app: FastAPI, address: str, status: int, answer: Any) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://cloud") as client:
        found = await client.get(address)
    assert found.status_code == status
    assert answer is None or found.json() == answer
