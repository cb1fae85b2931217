//go:build carried

package source

import _ "embed"

// made by lab/cmd/sources
//
//go:embed source.tar.gz
var carried []byte

func archive() []byte { return carried }
