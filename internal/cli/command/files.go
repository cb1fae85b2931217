package command

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/replumb/replumb/internal/spec"
)

// Stdin is what -f calls it.
const Stdin = "-"

// InputFiles are what -f or -k names.
type InputFiles struct {
	Names         []string
	kustomization string
	recursive     bool
	read          []spec.Source
	command       *cobra.Command
}

// fileFlag is the long form of -f.
const fileFlag = "filename"

// Declare adds the flags.
func (f *InputFiles) Declare(cmd *cobra.Command) {
	f.command = cmd
	cmd.Flags().StringArrayVarP(&f.Names, fileFlag, "f", nil, "file or folder with the Migration, or - for stdin")
	cmd.Flags().StringVarP(&f.kustomization, "kustomize", "k", "", "folder with a kustomization that has the Migration")
	cmd.Flags().BoolVarP(&f.recursive, "recursive", "R", false, "take the folders in the folders of -f as well")
}

// Given reports whether anything was named.
func (f *InputFiles) Given() bool { return len(f.Names) > 0 || f.kustomization != "" }

// Typed is what was named as the user typed it, such as "-f move.yaml". FILE stands for nothing,
// and for stdin, which is read by now.
func (f *InputFiles) Typed() string {
	switch {
	case f.kustomization != "":
		return "-k " + f.kustomization
	case len(f.Names) == 0 || slices.Contains(f.Names, Stdin):
		return "-f FILE"
	}
	return "-f " + strings.Join(f.Names, " -f ")
}

// Sources reads what was named, once.
func (f *InputFiles) Sources(a *App) (all []spec.Source, err error) {
	if len(f.read) == 0 {
		f.read, err = f.open(a)
	}
	return f.read, err
}

func (f *InputFiles) open(a *App) (all []spec.Source, err error) {
	switch {
	case !f.Given():
		return nil, &UsageError{Problem: "name the file with the Migration", Hint: f.command.CommandPath() + " -f FILE"}
	case len(f.Names) > 0 && f.kustomization != "":
		return nil, &UsageError{Problem: "-f and -k do not go together", Hint: "name files with -f, or a kustomization with -k"}
	case f.recursive && len(f.Names) == 0:
		return nil, &UsageError{Problem: "-R is for -f", Hint: "a kustomization names its files itself: leave -R out"}
	case f.kustomization != "":
		return kustomized(f.kustomization)
	}
	for _, name := range f.Names {
		found, err := f.openOne(name, a.In)
		if err != nil {
			return nil, &UsageError{Problem: err.Error(), Hint: "name a file that can be read with -f"}
		}
		all = append(all, found...)
	}
	return all, nil
}

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

func (f *InputFiles) openOne(name string, in io.Reader) ([]spec.Source, error) {
	if name == Stdin {
		body, err := io.ReadAll(in)
		here, wrong := os.Getwd()
		return []spec.Source{{Name: "stdin", Body: body, Dir: here}}, errors.Join(err, wrong)
	}
	names := []string{name}
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		if names, err = manifests(name, f.recursive); err != nil {
			return nil, err
		}
	}
	var all []spec.Source
	for _, name := range names {
		body, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		dir, err := filepath.Abs(filepath.Dir(name))
		if err != nil {
			return nil, err
		}
		all = append(all, spec.Source{Name: name, Body: body, Dir: dir})
	}
	return all, nil
}

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

// ReadAll reads a file, or stdin.
func (a *App) ReadAll(name string) ([]byte, error) {
	if name == Stdin {
		return io.ReadAll(a.In)
	}
	return os.ReadFile(name)
}
