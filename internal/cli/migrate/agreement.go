package migrate

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/replumb/replumb/internal/engine"
)

// agreement is what the operator has agreed that a migration calls from this machine. It is kept in a file of the operator's own, and
// not in the cluster: who may write Migrations must not be able to write it.
type agreement struct {
	Cluster   engine.Identity `json:"cluster"`
	Migration string          `json:"migration"`
	Digest    string          `json:"digest"`
	// Dir is the folder of the file that the calls are from: relative paths of manifests are relative to it.
	Dir string `json:"dir,omitempty"`
	// Calls are for people who look into the file.
	Calls []string  `json:"calls"`
	At    time.Time `json:"at"`
}

// agreementFile is where the agreement about a migration of a cluster is. Neither name becomes part of a path: both are the cluster's.
func agreementFile(uid, name string) (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(uid + "/" + name))
	return filepath.Join(dir, "replumb", "calls", hex.EncodeToString(sum[:16])+".json"), nil
}

// readAgreement is empty if there is none, or none that can be read.
func readAgreement(uid, name string) (g agreement) {
	file, err := agreementFile(uid, name)
	if err != nil {
		return agreement{}
	}
	body, err := os.ReadFile(file)
	if err != nil || json.Unmarshal(body, &g) != nil || g.Cluster.UID != uid || g.Migration != name {
		return agreement{}
	}
	return g
}

// write replaces what was agreed to before.
func (g agreement) write() (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("remembering calls: %w", err)
		}
	}()
	file, err := agreementFile(g.Cluster.UID, g.Migration)
	if err != nil {
		return err
	}
	g.At = time.Now().UTC().Truncate(time.Second)
	body, err := json.MarshalIndent(g, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".new-*") // 0600
	if err != nil {
		return err
	}
	_, err = f.Write(append(body, '\n'))
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
