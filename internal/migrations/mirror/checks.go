package mirror

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/access"
)

// Input is what the checks look at.
type Input struct {
	Inventory *Inventory
	// Access is what the user may do in the source, TargetAccess in the target.
	Access, TargetAccess []access.Answer
	// FreezeProblem is why nothing can be frozen, RecordProblems why records cannot be changed.
	FreezeProblem  error
	RecordProblems map[string]error
	// Image is what agents run; none, if there are to be none. Nodes are those of the source.
	Image         string
	Nodes         []corev1.Node
	AbsentSecrets []findings.Result
	// Reviewed is the user's word that he has looked at what runs in both clusters.
	Reviewed bool
}

// Checks are the checks of this migration, in the order in which they are shown.
func Checks() []findings.Check[Input] {
	return slices.Concat(
		findings.Group("Clusters", append(clusterChecks(), freezeCheck())...),
		findings.Group("Objects", append(targetChecks(), objectChecks()...)...),
		findings.Group("Names", nameChecks()...),
		findings.Group("Agents", agentChecks()...),
	)
}

func clusterChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP4001", Severity: findings.Blocking, Run: checkRights,
			Claim: "the user has every right the migration needs, in both clusters",
			Why:   "a migration that is refused a write half way has to wait for someone to grant it",
			Fix:   "have an administrator bind the roles: replumb rbac -f FILE --user NAME | kubectl apply -f -, and cluster-admin in the target",
		},
		{
			Code: "RP4002", Severity: findings.Blocking, Run: checkIdentity,
			Claim: "the target is another cluster, and the one it was",
			Why:   "a cluster that is copied into itself, or into a third one, is a mistake in a kubeconfig",
			Fix:   "correct spec.mirror.target; clusters are distinguished by the UID of their namespace kube-system",
		},
		{
			Code: "RP4003", Severity: findings.Warning, Run: checkVersions,
			Claim: "both clusters have the same minor version of Kubernetes",
			Why:   "fields that one of them does not know are lost on the way, and defaults differ",
			Fix:   "bring the target to the version of the source; plan compares what is served, whatever the versions",
		},
		{
			Code: "RP4004", Severity: findings.Blocking, Run: checkServed,
			Claim: "the target serves every kind that is copied",
			Why:   "objects of a kind that is not served cannot be there, and their work is not done",
			Fix:   "install what serves it, copy its definition too, or leave the kind out: spec.mirror.copy.kinds.exclude",
		},
		{
			Code: "RP4005", Severity: findings.Warning, Run: checkRoom,
			Claim: "the target has room for what the source runs",
			Why:   "pods that find no node stay pending, and the comparison waits for them",
			Fix:   "add nodes to the target, or copy less; an autoscaler that adds them by itself is fine",
		},
		{
			Code: "RP4006", Severity: findings.Blocking, Run: checkBlind,
			Claim: "every webhook of the target that can refuse has a running backend",
			Why:   "with failurePolicy Fail and no one who answers, nothing that it is asked about can be written",
			Fix:   "see to the pods of its Service, or delete the configuration",
		},
		{
			Code: "RP4007", Severity: findings.Blocking, Run: checkFreeze,
			Claim: "deployments by others can be frozen",
			Why:   "a deployment to the source after the copy is missing in the target",
			Fix:   "have an administrator bind the roles: replumb rbac -f FILE --user NAME | kubectl apply -f -; or have no one deploy and set spec.freeze: Disabled",
		},
	}
}

func freezeCheck() findings.Check[Input] {
	return findings.Check[Input]{
		Code: "RP4008", Severity: findings.Blocking, Run: checkFreezeKinds,
		Claim: "every kind of spec.mirror.freezeKinds is one of objects in namespaces that the source serves",
		Why:   "a kind that is spelled otherwise freezes nothing, and deployments of it after the copy are missing in the target",
		Fix:   "correct it: kubectl api-resources --namespaced -o name lists them; or take it out",
	}
}

// targetChecks ask whether the target has what copies need, and not what is in their way.
func targetChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP4101", Severity: findings.Blocking, Run: checkConflicts,
			Claim: "every object of the target with a source's name is a copy",
			Why:   "objects of others there are not overwritten",
			Fix:   "remove it there, leave it out, or set spec.mirror.copy.existing: Keep or Overwrite",
		},
		{
			Code: "RP4102", Severity: findings.Blocking, Run: checkClaims,
			Claim: "every copied workload with a volume has a decision about its data",
			Why:   "a volume does not come along: a copy begins with an empty one, and names would lead there",
			Fix:   "leave claims out (spec.mirror.copy.volumes: Skip), or fill the copies: volumes: Copy with a volumeAction",
		},
		{
			Code: "RP4103", Severity: findings.Blocking, Run: checkClasses,
			Claim: "the target has every storage class that copies ask for",
			Why:   "a claim of a class that does not exist is never bound",
			Fix:   "make the class there, or rename it on the way: spec.mirror.copy.transforms with storageClasses",
		},
		{
			Code: "RP4110", Severity: findings.Blocking, Run: checkVolumes,
			Claim: "the target has a volume for the copy of every claim that nothing makes one for",
			Why:   "a copy does not name the volume of the source; without a provisioner it stays pending, and so does every pod that uses it",
			Fix: "make a PersistentVolume in the target that leads to the same storage, without a claimRef or with the claim's name; or give the copy a " +
				"class, by spec.mirror.copy.transforms; or leave the claim out",
		},
		{
			Code: "RP4111", Severity: findings.Blocking, Run: checkPorts,
			Claim: "every node port of a copy is free in the target",
			Why:   "the API server refuses the copy of a Service whose node port another one has",
			Fix:   "set spec.mirror.copy.nodePorts: Strip, and copies get others; or free the port in the target",
		},
		{
			Code: "RP4112", Severity: findings.Blocking, Run: checkQuotas,
			Claim: "every quota of the target allows what its namespace gets",
			Why:   "the API server refuses copies beyond it, and pods of copies: workloads stay without some, and the comparison waits for them",
			Fix:   "raise the quota in the target, remove it, or have the source's take its place: spec.mirror.copy.existing: Overwrite; or copy less",
		},
		{
			Code: "RP4113", Severity: findings.Blocking, Run: checkHostPorts,
			Claim: "every host port of a copy is free on the target's nodes",
			Why:   "a pod whose port of the node another one has stays pending, and the comparison waits for it",
			Fix: "change the port on the way, by spec.mirror.copy.transforms with a jsonPatch; leave the workload out; or remove from the target " +
				"what has the port",
		},
		{
			Code: "RP4114", Severity: findings.Blocking, Run: checkDefinitions,
			Claim: "the target's definitions of custom resources have the versions and fields of copies",
			Why:   "fields that a definition does not know are dropped without a word, and a version that is not served is converted or refused",
			Fix: "bring the definition in the target to that of the source, with its controller; if no one else uses it there, have the source's " +
				"replace it: spec.mirror.copy.existing: Overwrite; or leave the kind out: spec.mirror.copy.kinds.exclude",
		},
	}
}

func objectChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP4106", Severity: findings.Blocking, Run: checkTransforms,
			Claim: "every transform can be done",
			Why:   "an object that cannot be changed as it was asked for cannot be copied",
			Fix:   "correct the transform in spec.mirror.copy.transforms, or have it choose other objects",
		},
		{
			Code: "RP4104", Severity: findings.Warning, Run: checkCloud,
			Claim: "everything that is copied works without cloud resources of this cluster",
			Why: "load balancers, roles and security groups of the source do not know the target: its pods are refused by what trusts the source's " +
				"roles, and its traffic by what lets the source's networks in",
			Fix: "hand the list to those who own the infrastructure, and go on when the target has the same; what pods have to reach, such as " +
				"databases, is tried from pods of the target if spec.mirror.canary.targets names it",
		},
		{
			Code: "RP4105", Severity: findings.Warning, Run: checkTwice,
			Claim: "singletons run in one cluster at a time",
			Why: "workloads that consume a queue, send mail, write to somewhere outside or act on custom resources do so in both clusters, from the copy until " +
				"the mirror is taken down. A Lease elects one leader in each cluster, so leader election does not help, nor does a number of replicas",
			Fix: "name Deployments and StatefulSets in spec.mirror.singletons.workloads, or annotate them replumb.dev/run-once=true; leave other kinds out " +
				"by spec.mirror.copy; what may run twice needs nothing",
		},
		{
			Code: "RP4109", Severity: findings.Blocking, Run: checkReviewed,
			Claim: "someone has looked at what runs in both clusters",
			Why:   "replumb sees which workloads would run in both clusters (RP4105), and not which of them must not",
			Fix: "look through RP4105 with the owners, then set metadata.annotations replumb.dev/singletons: Reviewed in the file, or on the Migration: " +
				"kubectl annotate migrations.replumb.dev NAME replumb.dev/singletons=Reviewed",
		},
		{
			Code: "RP4108", Severity: findings.Warning, Run: checkNetworks,
			Claim: "every object is copied, those of pod networks included",
			Why: "the target has a network of its own; that of the source beside it would keep pods of both from working, so its DaemonSet, its namespace if " +
				"it holds nothing else, its roles and its definitions are not copied",
			Fix: "nothing, if the target has its network; name the namespace in spec.mirror.copy.namespaces.include to have it copied all the same",
		},
		{
			Code: "RP4107", Severity: findings.Warning, Run: checkSecrets,
			Claim: "Secrets stay in the cluster",
			Why: "a reader of Secrets in the target, or of its etcd, gets every credential that is copied; those of Argo CD, Flux, Vault, Cluster API and " +
				"Helm releases often reach further than one cluster",
			Fix: "compare who may read Secrets in the target and whether its etcd is encrypted; leave out what it does not need, by namespace or kind: " +
				"spec.mirror.copy.namespaces.exclude, spec.mirror.copy.kinds.exclude",
		},
	}
}

func nameChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP4201", Severity: findings.Blocking, Run: checkNames,
			Claim: "every name has a load balancer on both sides",
			Why:   "a name that leads nowhere is an outage, and one that leads to the same on both sides is not redirected",
			Fix:   "name the load balancers in spec.mirror.redirect.from and to, or wait until the objects' status has them",
		},
		{
			Code: "RP4202", Severity: findings.Blocking, Run: checkRecords,
			Claim: "every DNS record can be changed, and belongs to this migration",
			Why:   "a record that is someone else's is put back behind our back, or was meant to stay",
			Fix: "see to what the message says; stop the external-dns that owns a record before you name it under spec.mirror.redirect.owners: " +
				"as long as it runs it puts the record back",
		},
		{
			Code: "RP4206", Severity: findings.Warning, Run: checkSigned,
			Claim: "updates of DNS are signed",
			Why:   "a server that takes updates without a signature takes them from anyone who can send it one",
			Fix:   "make a key with tsig-keygen, have the server ask for it, and name it under provider.rfc2136.tsigSecret or tsigKeyFile",
		},
		{
			Code: "RP4203", Severity: findings.Warning, Run: checkCovered,
			Claim: "certificates are valid for the aliases of their names",
			Why:   "by its alias the mirror is tried out before names lead there; a certificate that was issued elsewhere cannot be extended",
			Fix:   "have it issued with the alias, or try the mirror out by its name: spec.mirror.redirect.probe does",
		},
		{
			Code: "RP4204", Severity: findings.Warning, Run: checkUnprobed,
			Claim: "every name answers at the target before its record leads there",
			Why:   "a load balancer that leads to nothing shows only when clients arrive",
			Fix:   "leave spec.mirror.redirect.probe.mode out; wildcards cannot be asked for: list a name below them",
		},
		{
			Code: "RP4205", Severity: findings.Warning, Run: checkAny,
			Claim: "at least one name is to lead to the target",
			Why:   "without names the target is a copy, and no one is led there",
			Fix:   "list them under spec.mirror.redirect.names, with a provider",
		},
	}
}
