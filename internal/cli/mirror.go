package cli

import (
	"context"
	"fmt"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/migrations/mirror"
)

// context gives access to another context of the kubeconfig. Flags that override parts of one, such as --server, are for the source.
func (a *app) context(name string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	if a.config.KubeConfig != nil {
		rules.ExplicitPath = *a.config.KubeConfig
	}
	overrides := &clientcmd.ConfigOverrides{CurrentContext: name}
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
}

// dirFlags are those of plan that write a copy to files.
type dirFlags struct {
	dir     string
	secrets bool
}

func (f *dirFlags) declare(cmd *cobra.Command) {
	cmd.Flags().
		StringVar(&f.dir, "to-dir", "", "of a mirror: write what would be copied to this empty directory, as manifests, and nothing else")
	cmd.Flags().BoolVar(&f.secrets, "with-secrets", false, "with --to-dir: write Secrets too, in files that only you can read")
}

// fit refuses files for what is no mirror.
func (f *dirFlags) fit(_ *v1alpha1.Migration, j migrations.Job) error {
	_, copies := j.(*mirror.Job)
	switch {
	case f.dir != "" && !copies:
		return &UsageError{Problem: "--to-dir is for spec.mirror", Hint: "leave it out: plan -o yaml prints every object and patch"}
	case f.secrets && f.dir == "":
		return &UsageError{Problem: "--with-secrets is for --to-dir", Hint: "add --to-dir DIR"}
	}
	return nil
}

func (a *app) writeDir(ctx context.Context, j migrations.Job, to dirFlags) error {
	w, err := j.(*mirror.Job).WriteDir(ctx, to.dir, to.secrets)
	if err != nil {
		return ofJob(j, err)
	}
	if w.Secrets > 0 {
		a.hint("%s left out; --with-secrets writes them too", english.Plural(w.Secrets, "Secret was", "Secrets were"))
	}
	return a.done(
		fmt.Sprintf("%s written to %s; kubectl apply -k %s applies them in order", english.Plural(w.Files, "manifest", ""), to.dir, to.dir),
	)
}
