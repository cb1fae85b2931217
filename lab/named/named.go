// Package named writes what BIND's name server runs with in a lab: one zone that takes updates from who has the key, below
// a root that has nothing else.
package named

import (
	"crypto/rand"
	_ "embed"
	"encoding/base64"
	"fmt"
	"net/netip"
	"strings"
	"text/template"
	"time"
)

// KeyName is the name of the key that updates are signed with.
const KeyName = "replumb-lab"

// keyBytes is as long as what the hash makes, as `tsig-keygen` has it.
const keyBytes = 32

// NewKey makes a key for updates (TSIG, RFC 8945) and returns the file that named includes and `nsupdate -k` takes.
func NewKey() []byte {
	secret := make([]byte, keyBytes)
	_, _ = rand.Read(secret) // it never fails
	return fmt.Appendf(nil, "key %q {\n\talgorithm hmac-sha256;\n\tsecret %q;\n};\n", KeyName, base64.StdEncoding.EncodeToString(secret))
}

// Record is an address of a name in the zone.
type Record struct {
	Name    string // relative to the zone
	Address netip.Addr
}

// Zone is what a name server begins with.
type Zone struct {
	Name    string
	TTL     time.Duration // of every record
	Records []Record
	// Server is the name server itself.
	Server Record
	// KeyFile is where named finds the key, and File where it keeps the zone and writes what becomes of it.
	KeyFile, File string
	// RootFile is where it finds the zone that says no to every other name.
	RootFile string
}

//go:embed named.conf
var configTemplate string

// Config is the configuration of the server.
func (z Zone) Config() ([]byte, error) { return z.render("config") }

// Content is the zone at first.
func (z Zone) Content() ([]byte, error) { return z.render("zone") }

// Root is the content of the zone above it.
func (z Zone) Root() ([]byte, error) { return z.render("root") }

// Seconds is the TTL as zones have it.
func (z Zone) Seconds() int { return int(z.TTL.Seconds()) }

func (z Zone) render(part string) ([]byte, error) {
	t, err := template.New("named.conf").Parse(configTemplate)
	if err != nil {
		return nil, err
	}
	var out strings.Builder
	err = t.ExecuteTemplate(&out, part, z)
	return []byte(out.String()), err
}
