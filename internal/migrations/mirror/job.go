package mirror

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/objectsync"
	"github.com/replumb/replumb/internal/kube/objectsync/copyrules"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/dnscutover"
	"github.com/replumb/replumb/internal/network/dnsrecords"
	"github.com/replumb/replumb/internal/safety/freeze"
	"github.com/replumb/replumb/internal/spec"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// Job runs one Migration.
type Job struct {
	*migration.Job[*Planner]
	migration.Subject
	lossguard.Watched

	Tools Deps
	Spec  Spec

	// Silent asks no name server and reads no key: it is for looking alone.
	Silent bool
	// WithoutTarget leads names back without the other cluster, which is gone. Nothing is known
	// then of what runs there, and of what has run.
	WithoutTarget bool

	from, to  *side
	copying   *copying
	networks  []network
	finishing bool
	// target is what the user may do there; Access is about the source.
	targetAccess []access.Answer
}

// NewJob defaults and validates a Migration. The Migration itself is not changed.
func NewJob(tools Deps, m *v1alpha1.Migration) (*Job, error) {
	m = m.DeepCopy()
	Default(m)
	s, err := Validate(m)
	if err != nil {
		return nil, err
	}
	if _, err := copyrules.New(s.rules(nil)); err != nil {
		return nil, err
	}
	j := &Job{Tools: tools, Subject: migration.Subject{Migration: m, OwnFreeze: true}, Spec: s}
	j.Job = &migration.Job[*Planner]{
		Kind: j, Client: tools.Client(), Name: s.Name, Guard: j.agents(), Now: tools.Now, Directed: tools.Directed,
	}
	return j, j.agents().Check()
}

// rules are what copies are made by; nil credentials are for validation alone.
func (s *Spec) rules(credentials map[v1alpha1.SecretReference]*corev1.Secret) copyrules.Options {
	o := copyrules.Options{Migration: s.Name, Copy: *s.Copy.DeepCopy(), Hosts: s.Hosts, Singletons: s.Singletons, Credentials: credentials}
	if credentials == nil {
		for i := range o.Copy.Registries {
			o.Copy.Registries[i].Credentials = nil
		}
	}
	return o
}

func (j *Job) Adopt(have *v1alpha1.Migration) (err error) {
	j.finishing = have != nil && have.Spec.Desired == v1alpha1.DesiredFinished
	if err := j.TakeOver(have); err != nil {
		return err
	}
	j.Spec, err = Validate(j.Migration)
	return err
}

// Silence has the job call nothing that its Migration names.
func (j *Job) Silence() { j.Silent = true }

// Open connects to both clusters, and fails early if the target may not be used.
func (j *Job) Open(ctx context.Context) error { return j.connect(ctx) }

func (j *Job) connect(ctx context.Context) (err error) {
	if j.copying != nil {
		return nil
	}
	roles, err := j.Roles(ctx)
	if err != nil {
		return err
	}
	if err := j.Authorize(ctx, j.Tools.Cluster, roles, toLook); err != nil {
		return err
	}
	if j.from, err = j.Tools.source(ctx); err != nil {
		return err
	}
	if !j.WithoutTarget {
		if err := j.connectTarget(ctx); err != nil {
			return err
		}
	}
	copier, err := j.copier(ctx)
	if err != nil {
		return err
	}
	j.copying = &copying{copier: copier}
	return nil
}

func (j *Job) connectTarget(ctx context.Context) (err error) {
	if j.to, err = j.Tools.open(ctx, j.Spec.Target); err != nil {
		return err
	}
	if err := j.sameTarget(ctx); err != nil {
		return err
	}
	if j.targetAccess, err = j.to.Authorize(ctx, TargetRoles(j.Spec.tries()), toLook); err != nil {
		return &TargetError{Problem: "cannot be looked at: " + err.Error(), Hint: "bind cluster-admin to the user there", Err: err}
	}
	return nil
}

// sameTarget refuses another target than the recorded one, which must not get the copies.
func (j *Job) sameTarget(ctx context.Context) error {
	have, err := migration.Get(ctx, j.Tools.Cluster, j.Spec.Name)
	if err != nil || have == nil || have.Status.Mirror == nil {
		return err
	}
	if recorded := have.Status.Mirror.TargetUID; recorded != "" && recorded != j.to.uid {
		return &AnotherTargetError{Name: j.Spec.Name, Recorded: recorded, Now: j.to.uid}
	}
	return nil
}

func (j *Job) copier(ctx context.Context) (*objectsync.Copier, error) {
	credentials, err := j.credentials(ctx)
	if err != nil {
		return nil, err
	}
	if j.networks, err = j.findNetworks(ctx); err != nil {
		return nil, err
	}
	options := j.Spec.rules(credentials)
	options.Network = left(j.networks)
	rules, err := copyrules.New(options)
	if err != nil {
		return nil, err
	}
	source, err := objectsync.Connect(j.from.Cluster)
	if err != nil {
		return nil, err
	}
	copier := &objectsync.Copier{Source: source, Rules: rules}
	if !j.WithoutTarget {
		copier.Target, err = objectsync.Connect(j.to.Cluster)
	}
	return copier, err
}

func (j *Job) credentials(ctx context.Context) (map[v1alpha1.SecretReference]*corev1.Secret, error) {
	out := map[v1alpha1.SecretReference]*corev1.Secret{}
	for i, r := range j.Spec.Copy.Registries {
		if r.Credentials == nil {
			continue
		}
		secret := &corev1.Secret{}
		err := j.Tools.Cluster.Get(ctx, client.ObjectKey{Namespace: r.Credentials.Namespace, Name: r.Credentials.Name}, secret)
		if err != nil {
			return nil, &spec.Error{
				Field: fmt.Sprintf("%s.copy.registries[%d].credentials", root, i), Problem: err.Error(),
				Hint: "make a Secret of type kubernetes.io/dockerconfigjson with credentials for the registry in to",
			}
		}
		out[*r.Credentials] = secret
	}
	return out, nil
}

func (j *Job) Examine(ctx context.Context) (*Planner, error) {
	if err := j.connect(ctx); err != nil {
		return nil, err
	}
	survey, err := j.survey(ctx)
	if err != nil {
		return nil, err
	}
	base, err := j.Base(ctx, j.Tools.Deps)
	if err != nil {
		return nil, err
	}
	p := &Planner{Base: base, Inventory: survey, source: j.from, target: j.to, copying: j.copying, finishing: j.finishing}
	in := Input{Inventory: survey, Access: j.Access, TargetAccess: j.targetAccess}
	for _, m := range []*v1alpha1.Migration{j.Migration, j.Recorded} { // the file has it, or the Migration in the cluster
		in.Reviewed = in.Reviewed || migration.Answered(m, v1alpha1.AnnotationSingletons, reviewed)
	}
	if err := j.watchedBy(ctx, p, &in); err != nil {
		return nil, err
	}
	if p.Cutovers, err = j.cutovers(ctx, survey.Names); err != nil {
		return nil, err
	}
	if p.Dropped, err = j.cutovers(ctx, survey.Dropped()); err != nil {
		return nil, err
	}
	in.RecordProblems = dnscutover.Looked(ctx, p.Cutovers)
	if survey.Freeze {
		in.FreezeProblem = j.freezable(ctx)
		survey.Freeze = in.FreezeProblem == nil
	}
	found, err := p.Agents.Try(ctx, &j.Subject, j.Tools.Cluster)
	if err != nil {
		return nil, err
	}
	p.Findings = slices.Concat(findings.Run(Checks(), in), p.Findings, found)
	return p, nil
}

// freezable says why deployments cannot be frozen; nil, if they can.
func (j *Job) freezable(ctx context.Context) error {
	for _, resource := range []string{"validatingadmissionpolicies", "validatingadmissionpolicybindings"} {
		if !j.May("create", "admissionregistration.k8s.io", resource) {
			return &freeze.UnavailableError{Err: errors.New("the user may not create " + resource)}
		}
	}
	return freeze.DeploysPossible(ctx, j.Tools.Cluster, j.Spec.Name)
}

func (j *Job) cutovers(ctx context.Context, names []v1alpha1.RedirectName) ([]*dnscutover.PairedName, error) {
	if len(names) == 0 {
		return nil, nil
	}
	asking := j.Tools.DNS
	if asking == nil {
		asking = &dnsrecords.Client{}
	}
	return dnscutover.Open(ctx, dnscutover.Deps{
		Client: asking, Secrets: migration.Secrets(j.Tools.Cluster), GateWait: j.Spec.GateWait, Now: j.Tools.Now,
		Memory: migration.RecordMemory{Client: j.Tools.Cluster, Name: j.Spec.Name},
	}, names, j.Spec.Redirect)
}

// Apply has the target serve. While it runs, what changes in the source is followed.
func (j *Job) Apply(ctx context.Context, r *engine.Runner) (*Planner, error) {
	following, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	if err := j.connect(ctx); err != nil {
		return nil, err
	}
	j.copying.run = following
	return j.Job.Apply(ctx, r)
}

// RunApply is Apply, of which that of migration.Job knows nothing.
func (j *Job) RunApply(ctx context.Context, r *engine.Runner) (migration.ApplyResult, error) {
	p, err := j.Apply(ctx, r)
	if err != nil {
		return migration.ApplyResult{}, err
	}
	return j.Applied(p), nil
}

// Unasked stands for where a name leads, where that is not asked.
const Unasked = "unknown (name servers not asked)"

// Glance is for status: what the Migration remembers, where names lead, and the number of copies.
func (j *Job) Glance(ctx context.Context) (*Inventory, error) {
	s, err := j.glance(ctx)
	if err != nil {
		return nil, err
	}
	if j.Silent {
		s.Places = map[string]string{}
		for _, n := range s.Names {
			s.Places[Title(n)] = Unasked
		}
		return s, nil
	}
	cutovers, err := j.cutovers(ctx, s.Names)
	s.Places = places(ctx, cutovers)
	for _, n := range s.Names {
		if err != nil {
			s.Places[Title(n)] = fmt.Sprintf("unknown: %v", err)
		}
	}
	return s, nil
}

// WriteDir writes manifests of all copies, and fails with a *RefusedError of wrong transforms.
func (j *Job) WriteDir(ctx context.Context, dir string, withSecrets bool) (objectsync.Written, error) {
	if err := j.connect(ctx); err != nil {
		return objectsync.Written{}, err
	}
	w, err := j.copying.copier.WriteDir(ctx, dir, withSecrets)
	if err != nil {
		return w, err
	}
	return w, refused(w.Errors)
}
