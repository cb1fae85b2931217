// Package component builds the stock components a lab runs - Kubernetes, containerd, CoreDNS, the CNI plugins - from
// their Go modules, once, into a cache outside the source tree.
//
// Each component is a Go module of its own under lab/components, so that their large dependency trees stay out of
// replumb's. A build is kept under a key made of everything that decides its content, so a changed go.sum builds again
// and an unchanged one never does.
package component

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/replumb/replumb/lab/source"
)

// Component is one module under lab/components and how to build it.
type Component struct {
	Name     string   // of its builds, and its folder under lab/components
	From     string   // the component whose folder it shares, if it has none of its own
	Module   string   // the module whose version is the component's version
	Packages []string // main packages to build, "." for the module's own; one binary each, named after its package
	Tests    []string // packages whose tests to build; one binary each, named after its package, with .test
	OnDemand bool     // whether it is built only when asked for by name
	Aliases  []string // other names for the module's own binary, as symlinks
	Tags     []string // build tags
	LDFlags  func(version string) []string
	Assets   string        // folder of the module whose files are copied into the folder crd of the build: definitions, as a rule
	Cold     time.Duration // processor time that a first build takes, once replumb and the components before it are built
}

// Builder builds components of one source tree into one cache.
type Builder struct {
	Source   string                           // folder lab/components of a replumb checkout
	Cache    string                           // folder of the finished builds
	Progress func(format string, args ...any) // reports what is being built and how long it takes; may be nil
	Line     func(line string)                // draws one line in place of the last, on terminals; may be nil
}

// NewBuilder returns a Builder for the checkout that holds the working directory, or else for the sources that this program carries, with the user's cache folder.
func NewBuilder(progress func(format string, args ...any)) (*Builder, error) {
	root, err := sources()
	if err != nil {
		return nil, err
	}
	cache, err := CacheDir()
	if err != nil {
		return nil, err
	}
	return &Builder{
		Source: filepath.Join(root, "lab", "components"), Cache: filepath.Join(cache, "components"), Progress: progress,
	}, nil
}

// CacheDir is where everything that is built for labs is kept: $XDG_CACHE_HOME/replumb, or /var/cache/replumb for a
// user without a home.
func CacheDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		base = "/var/cache"
	}
	dir := filepath.Join(base, "replumb")
	return dir, os.MkdirAll(dir, 0o755)
}

// sources is the folder that components and images are built from: the checkout that the working directory is in, or what this program
// carries.
func sources() (string, error) {
	root, inCheckout := SourceRoot()
	if inCheckout == nil {
		return root, nil
	}
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	root, err = source.Carried(cache)
	if errors.Is(err, source.ErrNone) {
		return "", inCheckout
	}
	return root, err
}

// SourceRoot finds the replumb checkout that the working directory is in.
func SourceRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for d := dir; ; d = filepath.Dir(d) {
		data, err := os.ReadFile(filepath.Join(d, "go.mod"))
		if err == nil && modfile.ModulePath(data) == "github.com/replumb/replumb" {
			return d, nil
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("%s is not in a checkout of github.com/replumb/replumb, which the lab builds from\n"+
				"hint: change into the checkout first, or use a replumb-lab that make build has made: it carries what it builds from", dir)
		}
	}
}

// Dir returns the folder of the component's binaries, building them first if the cache has none for the current
// sources.
func (b *Builder) Dir(ctx context.Context, c Component) (string, error) {
	dirs, err := b.Build(ctx, c)
	return dirs[c.Name], err
}

// Build returns the folders of the components' binaries by the components' names, building first what the cache has none of.
func (b *Builder) Build(ctx context.Context, components ...Component) (map[string]string, error) {
	dirs := map[string]string{}
	var missing []build
	for _, c := range components {
		one, err := b.find(c)
		if err != nil {
			return nil, fmt.Errorf("component %s: %w", c.Name, err)
		}
		dirs[c.Name] = one.dir
		if !one.there() {
			missing = append(missing, one)
		}
	}
	if len(missing) == 0 {
		return dirs, nil
	}
	return dirs, b.buildAll(ctx, missing)
}

// build is a component in the state that its sources are in, and where its binaries belong.
type build struct {
	Component
	src, version, dir string
}

func (b *Builder) find(c Component) (build, error) {
	src := filepath.Join(b.Source, c.folder())
	version, err := moduleVersion(src, c.Module)
	if err != nil {
		return build{}, err
	}
	key, err := c.key(src, version)
	if err != nil {
		return build{}, err
	}
	dir := fmt.Sprintf("%s-%s-%s", c.Name, strings.TrimPrefix(version, "v"), key)
	return build{Component: c, src: src, version: version, dir: filepath.Join(b.Cache, dir)}, nil
}

func (o build) there() bool {
	_, err := os.Stat(o.dir)
	return err == nil
}

// atOnce is how many components are built at once: one compiles while another loads packages or is linked, which takes one processor. More
// would compile the same packages side by side.
const atOnce = 2

func (b *Builder) buildAll(ctx context.Context, missing []build) error {
	f := newForecast(missing)
	b.say("building %s: %s", f.open(), f.left())
	stop := b.report(f)
	defer stop()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for _, one := range missing {
		g.Go(func() error { return b.ensure(ctx, one, f) })
	}
	return g.Wait()
}

// ensure builds a component, unless another process does so meanwhile.
func (b *Builder) ensure(ctx context.Context, one build, f *forecast) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	unlock, err := lock(filepath.Join(b.Cache, ".lock-"+filepath.Base(one.dir)))
	if err != nil {
		return err
	}
	defer unlock()
	if one.there() { // another process built it while we waited for the lock
		f.end(one.Name, 0)
		return nil
	}
	start := time.Now()
	if err := b.build(ctx, one, f); err != nil {
		return err
	}
	b.say("built %s %s in %s", one.Name, strings.TrimPrefix(one.version, "v"), time.Since(start).Round(time.Second))
	return nil
}

func (b *Builder) build(ctx context.Context, one build, f *forecast) error {
	tmp, err := os.MkdirTemp(b.Cache, ".build-"+one.Name+"-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	if err := one.compile(ctx, tmp, f); err != nil {
		return fmt.Errorf("building component %s: %w", one.Name, err)
	}
	for _, alias := range one.Aliases {
		if err := os.Symlink(one.Name, filepath.Join(tmp, alias)); err != nil {
			return err
		}
	}
	if one.Assets != "" {
		if err := one.copyAssets(ctx, one.src, filepath.Join(tmp, "crd")); err != nil {
			return fmt.Errorf("component %s: %w", one.Name, err)
		}
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	return os.Rename(tmp, one.dir)
}

// compile builds all programs of a component at once, and then those of its tests.
func (o build) compile(ctx context.Context, out string, f *forecast) error {
	started := func(pid int) { f.start(o.Name, pid) }
	var used time.Duration
	defer func() { f.end(o.Name, used) }()
	if len(o.Packages) > 0 {
		took, err := goBuild(ctx, o.src, out+string(filepath.Separator), o.Packages, o.flags(o.version), started)
		if used += took; err != nil {
			return err
		}
	}
	for _, pkg := range o.Tests {
		took, err := goTestBuild(ctx, o.src, filepath.Join(out, filepath.Base(pkg)+".test"), pkg, o.flags(o.version), started)
		if used += took; err != nil {
			return err
		}
	}
	return nil
}

// copyAssets copies files of the component's module, which it downloads if no build has done so.
func (c Component) copyAssets(ctx context.Context, src, to string) error {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", c.Module)
	cmd.Dir, cmd.Env = src, append(os.Environ(), "GOWORK=off")
	output, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("go mod download %s: %w", c.Module, err)
	}
	var module struct {
		Dir string // folder of the module's files
	}
	if err := json.Unmarshal(output, &module); err != nil || module.Dir == "" {
		return fmt.Errorf("go mod download %s does not say where the module is: %s", c.Module, output)
	}
	return os.CopyFS(to, os.DirFS(filepath.Join(module.Dir, c.Assets)))
}

func (b *Builder) say(format string, args ...any) {
	if b.Progress != nil {
		b.Progress(format, args...)
	}
}

// folder under lab/components, which has the module that the component is built from.
func (c Component) folder() string { return cmp.Or(c.From, c.Name) }

func (c Component) flags(version string) []string {
	ld := []string{"-s", "-w"}
	if c.LDFlags != nil {
		ld = append(ld, c.LDFlags(version)...)
	}
	flags := append(compilerFlags(), "-ldflags", strings.Join(ld, " "))
	if len(c.Tags) > 0 {
		flags = append(flags, "-tags", strings.Join(c.Tags, ","))
	}
	return flags
}

// key is a short hash of everything that decides the content of a build.
func (c Component) key(src, version string) (string, error) {
	h := sha256.New()
	err := filepath.WalkDir(src, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		name, _ := strings.CutPrefix(path, src+string(filepath.Separator))
		_, _ = fmt.Fprintln(h, name)
		_, err = io.Copy(h, f)
		return err
	})
	if err != nil {
		return "", err
	}
	_, _ = fmt.Fprintln(h, runtime.Version(), runtime.GOARCH, c.Packages, c.Aliases, c.flags(version))
	if len(c.Tests) > 0 {
		_, _ = fmt.Fprintln(h, c.Tests)
	}
	if c.Assets != "" {
		_, _ = fmt.Fprintln(h, c.Assets)
	}
	return hex.EncodeToString(h.Sum(nil))[:12], nil
}

func moduleVersion(src, module string) (string, error) {
	data, err := os.ReadFile(filepath.Join(src, "go.mod"))
	if err != nil {
		return "", err
	}
	mod, err := modfile.ParseLax("go.mod", data, nil)
	if err != nil {
		return "", err
	}
	for _, r := range mod.Require {
		if r.Mod.Path == module {
			return r.Mod.Version, nil
		}
	}
	return "", errors.New("go.mod does not require " + module)
}

// lock takes an exclusive lock that the kernel releases when the process ends, however it ends.
func lock(path string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	return func() { _ = f.Close() }, nil
}
