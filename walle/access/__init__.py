"""Access of people and programs: tokens, roles by scenario, groups of scenarios, the audit log."""
