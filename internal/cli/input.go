package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/spec"
)

const stdin = "-"

func (a *app) fileFlag(cmd *cobra.Command) {
	cmd.Flags().StringArrayVarP(&a.files, "filename", "f", nil, "file or folder with the Migration, or - for stdin")
}

// read takes the one Migration that the files hold. Errors are as those of spec.Parse.
func (a *app) read() (*v1alpha1.Migration, error) {
	if len(a.files) == 0 {
		return nil, &UsageError{Problem: "name the file with the Migration", Hint: a.name + " plan -f FILE"}
	}
	var sources []spec.Source
	for _, name := range a.files {
		found, err := a.open(name)
		if err != nil {
			return nil, &UsageError{Problem: err.Error(), Hint: "name a file that can be read with -f"}
		}
		sources = append(sources, found...)
	}
	m, err := spec.Read(sources...)
	if m != nil && a.withoutAgent {
		m.Spec.Proof.Agents = v1alpha1.AgentsDisabled
	}
	return m, err
}

// open reads a file, all files of a folder that may hold objects, or stdin.
func (a *app) open(name string) ([]spec.Source, error) {
	if name == stdin {
		body, err := io.ReadAll(a.in)
		return []spec.Source{{Name: "stdin", Body: body}}, err
	}
	files := []string{name}
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		if files, err = manifests(name); err != nil {
			return nil, err
		}
	}
	var all []spec.Source
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		all = append(all, spec.Source{Name: file, Body: body})
	}
	return all, nil
}

// manifests are the files of a folder that kubectl would take, in order.
func manifests(dir string) (files []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(e.Name())) && !e.IsDir() {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("folder %s has no file that ends in .yaml, .yml or .json", dir)
	}
	return files, nil
}

// given is the Migration in the files, and everything that is wrong in it.
func (a *app) given() (*v1alpha1.Migration, job, error) {
	m, err := a.read()
	if m == nil {
		return nil, nil, err
	}
	j, wrong := a.newJob(nil, m)
	return m, j, spec.Join(err, wrong)
}

// named is what rollback and finish are about: the name that was given, or that of the Migration in the files. The settings in the
// files are recorded first, so that the command goes by them; which differ is reported.
func (a *app) named(ctx context.Context, args []string) (string, error) {
	if len(a.files) == 0 {
		return args[0], nil
	}
	m, _, err := a.given()
	if err != nil {
		return "", err
	}
	if len(args) == 1 && args[0] != m.Name {
		return "", &UsageError{
			Problem: fmt.Sprintf(
				"the file is about migration %s, and not about %s",
				m.Name,
				args[0],
			),
			Hint: "leave the name out, or the file",
		}
	}
	c, err := a.reach(ctx)
	if err != nil {
		return "", err
	}
	changes, err := migration.Amend(ctx, c.Cluster, m)
	for _, change := range changes {
		fmt.Fprintln(a.err, "changed", change)
	}
	return m.Name, client.IgnoreNotFound(err)
}

// nameOrFile takes the name of a Migration, or -f.
func (a *app) nameOrFile(cmd *cobra.Command, args []string) error {
	if len(args) == 0 && len(a.files) > 0 {
		return nil
	}
	return oneName(cmd, args)
}
