"""Credentials of devices: each stands for one device, under one secret."""

from walle.credential import credential_device, device_credential


def test_a_credential_stands_for_its_device_under_its_secret() -> None:
    for device_id in ("d0", "a.b.c", "größer", ""):
        credential = device_credential("secret", device_id)
        assert credential_device("secret", credential) == device_id
        assert credential_device("another", credential) is None


def test_what_was_not_made_with_the_secret_stands_for_nobody() -> None:
    mine = device_credential("secret", "d0")
    tag = mine.partition(".")[0]
    for wrong in ("", ".", "secret", ".d0", tag, f"{tag}.d1", f"{tag}d0", f"{tag[:-1]}.d0", mine + "x", "é.d0"):
        assert credential_device("secret", wrong) is None
