// Package crds carries the CustomResourceDefinitions of replumb in the binary, so that it can install them itself.
package crds

import _ "embed"

// Migrations is the CustomResourceDefinition of Migration.
//
//go:embed replumb.dev_migrations.yaml
var Migrations []byte

// NodeReports is the CustomResourceDefinition of NodeReport.
//
//go:embed replumb.dev_nodereports.yaml
var NodeReports []byte
