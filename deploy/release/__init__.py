"""Makes the files of a release: `make dist`, `make deb`. docs/release.md says how a release is made."""
