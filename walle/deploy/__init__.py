"""The deployment platform (§6): task repos, bundles, policies, releases, push answer, agent."""
