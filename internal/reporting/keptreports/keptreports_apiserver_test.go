//go:build apiserver && long

package keptreports

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/reporting/htmlreport"
	"github.com/replumb/replumb/internal/testing/apitest"
)

var lazy = &apitest.Lazy{Range: "10.96.0.0/16"}

func TestMain(m *testing.M) { os.Exit(lazy.Main(m)) }

// TestKeeps the latest report of each migration, of no more than so many.
func TestKeeps(t *testing.T) {
	server := lazy.Get(t)
	server.Namespace(t, v1alpha1.JournalNamespace)
	s := NewStore(server)
	s.most = 3
	for i := range 5 {
		for _, summary := range []string{"first", "second"} {
			d := &htmlreport.Document{Migration: fmt.Sprint("m", i), Summary: summary, Made: time.Unix(int64(1_800_000_000+i), 0)}
			if err := s.Save(t.Context(), named(d.Migration, fmt.Sprint("u", i)), d); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range 5 {
		d, err := s.Load(t.Context(), fmt.Sprint("m", i))
		var missing *NotKeptError
		switch {
		case i < 2 && (!errors.As(err, &missing) || !slices.Equal(missing.Have, []string{"m2", "m3", "m4"})):
			t.Errorf("m%d: %v, %v", i, d, err)
		case i >= 2 && (err != nil || d.Summary != "second"):
			t.Errorf("m%d: %v, %v", i, d, err)
		}
	}
}
