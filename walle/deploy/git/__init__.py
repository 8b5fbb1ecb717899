"""Git management (§6): a scenario is a repository, a task a branch, a version a tag."""
