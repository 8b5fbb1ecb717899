"""The cloud side of deployment (§6): task repositories, bundles, policies, releases, gates and the push answer."""
