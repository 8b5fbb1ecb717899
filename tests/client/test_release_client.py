"""Client of releases: its fields are those of a request, and a cloud of an older version is named as such."""

import dataclasses
from typing import Any

import httpx
import pytest

from walle.client.cloud_client import CloudRefusedError
from walle.client.release_client import OlderCloudError, ReleaseClient, RequestFields, RequestJson
from walle.deploy.releases.request import ReleaseRequest, start_flags


def client_of(status: int, answer: dict[str, Any]) -> ReleaseClient:
    """Return a client of a cloud that answers each call like this."""
    transport = httpx.MockTransport(lambda _: httpx.Response(status, json=answer))
    return ReleaseClient("http://cloud", transport=transport)


def test_the_client_the_command_and_the_request_have_the_same_fields() -> None:
    assert list(RequestFields.__annotations__) == list(start_flags())
    assert RequestJson.__annotations__.keys() == {one.name for one in dataclasses.fields(ReleaseRequest)}


@pytest.mark.asyncio
async def test_a_cloud_that_does_not_know_a_field_is_to_be_upgraded() -> None:
    refused = {"error": "body.steps: Extra inputs are not permitted", "type": "RequestError"}
    async with client_of(422, refused) as client:
        with pytest.raises(OlderCloudError, match=r"older version .*: .*body\.steps.*; upgrade the cloud"):
            await client.create("shop", "ipv", "v1", steps=[1.0])
    async with client_of(422, {"error": "body.steps: Input should be a valid list", "type": "RequestError"}) as client:
        with pytest.raises(CloudRefusedError, match="valid list"):
            await client.create("shop", "ipv", "v1", steps=[1.0])


@pytest.mark.asyncio
async def test_a_cloud_that_makes_a_release_without_a_start_is_to_be_upgraded() -> None:
    made: Any = {"id": "ipv-v1-1", "state": "created"}
    async with client_of(201, made) as client:
        with pytest.raises(OlderCloudError, match="made the release ipv-v1-1 and not started it; upgrade the cloud"):
            await client.create("shop", "ipv", "v1")
        assert await client.create("shop", "ipv", "v1", start=False) == made
