// Package agent runs on every node during a migration: it passes barriers, probes, connects to
// moved Services, and reports clients of old addresses in its NodeReport. It takes no orders but
// watches the migration's objects, and resumes from these. See docs/design/proof.md.
package agent
