"""Rules of what a push may do to a branch, by the role of the token."""

from collections.abc import Callable, Collection

from walle.access.access import Role

MAX_BRANCHES = 1_000  # limit of a scenario
MAX_REFS_A_DAY = 2_000  # refs that one token sets or deletes: each is a record of the audit log, whose size is bounded

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
        f"a forced push removes commits, for which the role {MAY_REWRITE} is needed; this token has {role};"
        " merge or revert, or push to a new branch"
    )


def name_refusal(name: str) -> str:
    """Return the reason to refuse a branch's name, which git allows; empty if none."""
    if name.startswith("-"):
        return "a branch whose name begins with - is taken for an option by git's commands; choose another name"
    if name == "HEAD" or name.startswith("refs/"):
        return f"a branch named {name[:80]} is taken for another by git's commands; choose another name"
    return ""


def clash_refusal(ref: str, present: Collection[str]) -> str:
    """Return the reason to refuse a new ref for those that exist; empty if none. git keeps refs as files in folders."""
    parts = ref.split("/")
    for count in range(3, len(parts)):
        if (folder := "/".join(parts[:count])) in present:
            return f"{folder} exists already, and this name needs a folder of its name; choose another"
    if below := next((one for one in present if one.startswith(f"{ref}/")), ""):
        return f"{below} exists already, in a folder of this name; choose another"
    if ref.startswith("refs/heads/") and sum(one.startswith("refs/heads/") for one in present) >= MAX_BRANCHES:
        return f"there are {MAX_BRANCHES} branches already, the limit of a scenario; delete old ones"
    return ""
