"""Rules of what a push may do to a branch, by the role of the token."""

from collections.abc import Callable

from walle.deploy.cloud.access import Role

MAY_REWRITE = Role.RELEASER
"""The role that may take commits of others away: delete branches, and move them to other histories."""


def deletion_refusal(role: Role) -> str:
    """Return the reason to refuse the deletion of a branch; empty if none."""
    if role >= MAY_REWRITE:
        return ""
    return f"branches are deleted by the role {MAY_REWRITE}, and this token has {role}"


def rewrite_refusal(role: Role, adds_to_history: Callable[[], bool]) -> str:
    """Return the reason to refuse to move a branch; empty if none. `adds_to_history`: the new commit has the old one.

    What was pushed may be the base of others' work, or reviewed: an author adds to it.
    """
    if role >= MAY_REWRITE or adds_to_history():
        return ""
    return (
        f"a forced push takes commits away, which the role {MAY_REWRITE} may, and this token has {role};"
        " merge or revert, or push to a new branch"
    )
