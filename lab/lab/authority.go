package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/replumb/replumb/internal/testing/pki"
)

// siteAuthorityBase is where a lab keeps, in its folder, the certificate and key of who signs for names outside.
const siteAuthorityBase = "site-ca"

// siteAuthority is who signs for names outside. Labs of one fabric have the same, as clusters have that get their certificates from
// a public authority: who follows a name to another cluster goes on trusting it. The first keeps its own for those that come.
func (l Addons) siteAuthority(own *pki.CA) (*pki.CA, error) {
	base := filepath.Join(stateDir(l.Fabrics().owner()), siteAuthorityBase)
	if !l.Fabrics().isGuest() {
		return own, errors.Join(os.WriteFile(base+".crt", own.Cert, 0o600), os.WriteFile(base+".key", own.Key, 0o600))
	}
	var kept pki.Pair
	for path, to := range map[string]*[]byte{base + ".crt": &kept.Cert, base + ".key": &kept.Key} {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("authority of lab %s: %w", l.Fabrics().owner(), err)
		}
		*to = data
	}
	return pki.LoadCA(kept)
}
