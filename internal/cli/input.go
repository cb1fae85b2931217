package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/spec"
)

const stdin = "-"

// input is where the Migration stands.
type input struct {
	// files are files and folders, or - for stdin.
	files []string
	// kustomization is a folder that kustomize builds.
	kustomization string
	// recursive takes the folders in folders as well.
	recursive bool
	// read are the sources once they were read: stdin can be read once.
	read []spec.Source
	// chosen is the one of several Migrations that a command is about.
	chosen *spec.Given
}

// given reports whether anything was named.
func (i *input) given() bool { return len(i.files) > 0 || i.kustomization != "" }

func (a *app) fileFlag(cmd *cobra.Command) {
	a.sourceFlag(cmd)
	cmd.Flags().StringArrayVar(&a.passEnv, "pass-env", nil,
		"name of an environment variable that programs of the file get, beside those that all get (docs/hooks.md)")
	cmd.Flags().BoolVar(&a.insecureTarget, "insecure-target-kubeconfig", false,
		"take the kubeconfig in the Secret of spec.mirror.target as it is: it may run programs and read files on this machine")
}

// sourceFlag is for commands that take from files only which Migrations they are about.
func (a *app) sourceFlag(cmd *cobra.Command) {
	cmd.Flags().StringArrayVarP(&a.input.files, "filename", "f", nil, "file or folder with the Migration, or - for stdin")
	cmd.Flags().StringVarP(&a.input.kustomization, "kustomize", "k", "", "folder with a kustomization that has the Migration")
	cmd.Flags().BoolVarP(&a.input.recursive, "recursive", "R", false, "take the folders in the folders of -f as well")
}

// read takes the one Migration that the files hold. Errors are as those of spec.Parse.
func (a *app) read() (*v1alpha1.Migration, error) {
	if of := a.input.chosen; of != nil {
		a.dir = of.Source.Dir
		return of.Migration.DeepCopy(), of.Err
	}
	sources, err := a.sources()
	if err != nil {
		return nil, err
	}
	m, source, err := spec.ReadFrom(sources...)
	a.dir = source.Dir
	a.override(m)
	return m, err
}

// override has flags outweigh what a Migration says; nil is none.
func (a *app) override(m *v1alpha1.Migration) {
	if m == nil {
		return
	}
	spec.PassEnv(m, a.passEnv)
	if a.withoutAgent {
		m.Spec.Proof.Agents = v1alpha1.AgentsDisabled
	}
}

// sources are what -f or -k names.
func (a *app) sources() (all []spec.Source, err error) {
	if len(a.input.read) == 0 {
		a.input.read, err = a.open()
	}
	return a.input.read, err
}

func (a *app) open() (all []spec.Source, err error) {
	in := &a.input
	switch {
	case !in.given():
		return nil, &UsageError{Problem: "name the file with the Migration", Hint: a.name + " plan -f FILE"}
	case len(in.files) > 0 && in.kustomization != "":
		return nil, &UsageError{Problem: "-f and -k do not go together", Hint: "name files with -f, or a kustomization with -k"}
	case in.recursive && len(in.files) == 0:
		return nil, &UsageError{Problem: "-R is for -f", Hint: "a kustomization names its files itself: leave -R out"}
	case in.kustomization != "":
		return kustomized(in.kustomization)
	}
	for _, name := range in.files {
		found, err := in.open(name, a.in)
		if err != nil {
			return nil, &UsageError{Problem: err.Error(), Hint: "name a file that can be read with -f"}
		}
		all = append(all, found...)
	}
	return all, nil
}

// kustomized is what kustomize makes of a folder. Paths in it are relative to that.
func kustomized(folder string) ([]spec.Source, error) {
	dir, err := filepath.Abs(folder)
	if err != nil {
		return nil, &UsageError{Problem: err.Error(), Hint: "name a folder with -k"}
	}
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return nil, &UsageError{Problem: err.Error(), Hint: "kubectl kustomize " + folder + " has to print the Migration"}
	}
	body, err := built.AsYaml()
	return []spec.Source{{Name: "kustomization " + folder, Body: body, Dir: dir}}, err
}

// open reads a file, all files of a folder that may hold objects, or stdin.
func (i *input) open(name string, in io.Reader) ([]spec.Source, error) {
	if name == stdin {
		body, err := io.ReadAll(in)
		here, wrong := os.Getwd()
		return []spec.Source{{Name: "stdin", Body: body, Dir: here}}, errors.Join(err, wrong)
	}
	files := []string{name}
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		if files, err = manifests(name, i.recursive); err != nil {
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
func manifests(dir string, recursive bool) (files []string, err error) {
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && path != dir && !recursive:
			return fs.SkipDir
		case !e.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path)):
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("folder %s has no file that ends in .yaml, .yml or .json", dir)
	}
	return files, nil
}

// given is the Migration in the files, and everything that is wrong in it.
func (a *app) given() (*v1alpha1.Migration, migrations.Job, error) {
	m, err := a.read()
	if m == nil {
		return nil, nil, err
	}
	j, wrong := a.newJob(nil, m)
	return m, j, spec.Join(err, wrong)
}

// nameOrFile takes the name of a Migration, or -f.
func (a *app) nameOrFile(cmd *cobra.Command, args []string) error {
	if len(args) == 0 && a.input.given() {
		return nil
	}
	return oneName(cmd, args)
}

// nameOrSet is the name of the one Migration that a command is about, or the set in the files.
func (a *app) nameOrSet(args []string) (string, *set, error) {
	if !a.input.given() {
		return args[0], nil, nil
	}
	s, of, err := a.setOr(args)
	if err != nil || s != nil {
		return "", s, err
	}
	name := ""
	if len(args) == 1 {
		name = args[0]
	}
	m, err := of.ofFile(name)
	if err != nil {
		return "", nil, err
	}
	return m.Name, nil, nil
}
