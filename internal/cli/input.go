package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/spec"
)

const stdin = "-"

func (a *app) fileFlag(cmd *cobra.Command) {
	cmd.Flags().StringArrayVarP(&a.files, "filename", "f", nil, "file or folder with the Migration, or - for stdin")
	cmd.Flags().StringArrayVar(&a.passEnv, "pass-env", nil,
		"name of an environment variable that programs of the file get, beside those that all get (docs/hooks.md)")
	cmd.Flags().BoolVar(&a.insecureTarget, "insecure-target-kubeconfig", false,
		"take the kubeconfig in the Secret of spec.mirror.target as it is: it may run programs and read files on this machine")
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
	m, source, err := spec.ReadFrom(sources...)
	a.dir = source.Dir
	if m != nil {
		spec.PassEnv(m, a.passEnv)
	}
	if m != nil && a.withoutAgent {
		m.Spec.Proof.Agents = v1alpha1.AgentsDisabled
	}
	return m, err
}

// open reads a file, all files of a folder that may hold objects, or stdin.
func (a *app) open(name string) ([]spec.Source, error) {
	if name == stdin {
		body, err := io.ReadAll(a.in)
		here, wrong := os.Getwd()
		return []spec.Source{{Name: "stdin", Body: body, Dir: here}}, errors.Join(err, wrong)
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
		dir, err := filepath.Abs(filepath.Dir(file))
		if err != nil {
			return nil, err
		}
		all = append(all, spec.Source{Name: file, Body: body, Dir: dir})
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

// nameOrFile takes the name of a Migration, or -f.
func (a *app) nameOrFile(cmd *cobra.Command, args []string) error {
	if len(args) == 0 && len(a.files) > 0 {
		return nil
	}
	return oneName(cmd, args)
}
