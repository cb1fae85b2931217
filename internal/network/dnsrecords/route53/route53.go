// Package route53 keeps records in Amazon Route 53. It is the only one that knows of AWS.
package route53

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	awsroute53 "github.com/aws/aws-sdk-go-v2/service/route53"
	"github.com/aws/aws-sdk-go-v2/service/route53/types"
	"github.com/miekg/dns"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/dnsrecords"
)

const defaultRegion = "us-east-1"

// API is what is called of Route 53.
type API interface {
	GetHostedZone(
		context.Context, *awsroute53.GetHostedZoneInput, ...func(*awsroute53.Options),
	) (*awsroute53.GetHostedZoneOutput, error)
	ListResourceRecordSets(
		context.Context, *awsroute53.ListResourceRecordSetsInput, ...func(*awsroute53.Options),
	) (*awsroute53.ListResourceRecordSetsOutput, error)
	ChangeResourceRecordSets(
		context.Context, *awsroute53.ChangeResourceRecordSetsInput, ...func(*awsroute53.Options),
	) (*awsroute53.ChangeResourceRecordSetsOutput, error)
	GetChange(
		context.Context, *awsroute53.GetChangeInput, ...func(*awsroute53.Options),
	) (*awsroute53.GetChangeOutput, error)
}

// Zone is a hosted zone.
type Zone struct {
	api    API
	id     string
	client *dnsrecords.Client

	mu sync.Mutex
	// change is the last one made here that was not seen to be everywhere.
	change string
	// servers are the names of the zone's; nil, if they were not asked for yet. They never change.
	servers []string
}

var (
	_ dnsrecords.Provider = (*Zone)(nil)
	_ dnsrecords.Texter   = (*Zone)(nil)
)

// Open uses the environment's credentials: variables, files, or the pod's or machine's role.
func Open(ctx context.Context, spec v1alpha1.Route53Provider, client *dnsrecords.Client) (*Zone, error) {
	cfg, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the configuration of AWS: %w", err)
	}
	switch {
	case spec.Region != "":
		cfg.Region = spec.Region
	case cfg.Region == "":
		cfg.Region = defaultRegion
	}
	return New(awsroute53.NewFromConfig(cfg), spec.HostedZoneID, client), nil
}

// New is a zone behind an API. client asks its servers.
func New(api API, id string, client *dnsrecords.Client) *Zone {
	return &Zone{api: api, id: id, client: client}
}

func (z *Zone) Get(ctx context.Context, name string, typ v1alpha1.RecordType) (dnsrecords.RecordSet, error) {
	raw, err := z.raw(ctx, name, typ)
	if err != nil {
		return dnsrecords.RecordSet{}, err
	}
	return set(name, typ, raw)
}

// raw is the record as Route 53 has it; nil without one.
func (z *Zone) raw(ctx context.Context, name string, typ v1alpha1.RecordType) (*types.ResourceRecordSet, error) {
	out, err := z.api.ListResourceRecordSets(ctx, &awsroute53.ListResourceRecordSetsInput{
		HostedZoneId:    &z.id,
		StartRecordName: aws.String(dns.CanonicalName(name)),
		StartRecordType: types.RRType(typ),
		MaxItems:        aws.Int32(1),
	})
	if err != nil {
		return nil, z.explain(dnsrecords.Title(name, typ), "route53:ListResourceRecordSets", err)
	}
	for i := range out.ResourceRecordSets {
		r := &out.ResourceRecordSets[i]
		if spelled(r.Name) == dns.CanonicalName(name) && r.Type == types.RRType(typ) {
			return r, z.plain(dnsrecords.Title(name, typ), r)
		}
	}
	return nil, nil
}

// spelled decodes Route 53's asterisk.
func spelled(name *string) string {
	return dns.CanonicalName(strings.Replace(aws.ToString(name), `\052`, "*", 1))
}

// plain refuses records with routing policies.
func (z *Zone) plain(record string, r *types.ResourceRecordSet) error {
	var problem string
	switch {
	case r.AliasTarget != nil && aws.ToString(r.AliasTarget.HostedZoneId) == z.id:
		return &dnsrecords.Error{
			Record: record, Problem: "it is an alias of " + aws.ToString(r.AliasTarget.DNSName) + ", a record of the same hosted zone",
			Hint: "move that record: the alias follows it",
		}
	case r.SetIdentifier != nil: // weighted, latency and all others have one
		problem = fmt.Sprintf("it has a routing policy (set identifier %q)", *r.SetIdentifier)
	case r.TrafficPolicyInstanceId != nil:
		problem = "it belongs to traffic policy instance " + *r.TrafficPolicyInstanceId
	case r.HealthCheckId != nil:
		problem = "it has health check " + *r.HealthCheckId
	default:
		return nil
	}
	return &dnsrecords.Error{Record: record, Problem: problem, Hint: "such records are not moved; use provider manual with a plain record"}
}

func set(name string, typ v1alpha1.RecordType, r *types.ResourceRecordSet) (dnsrecords.RecordSet, error) {
	if r == nil {
		return dnsrecords.NewSet(name, typ, 0, nil)
	}
	if a := r.AliasTarget; a != nil {
		value := dnsrecords.Alias{
			Zone: aws.ToString(a.HostedZoneId), Name: dns.CanonicalName(aws.ToString(a.DNSName)), Health: a.EvaluateTargetHealth,
		}
		return dnsrecords.NewSet(name, typ, dnsrecords.AliasTTL, []string{value.String()})
	}
	var values []string
	for _, v := range r.ResourceRecords {
		values = append(values, aws.ToString(v.Value))
	}
	return dnsrecords.NewSet(name, typ, time.Duration(aws.ToInt64(r.TTL))*time.Second, values)
}

// Replace changes all or nothing, of any types. Route 53 deletes by exact content, TTL included, so
// the deletion keeps its own spelling.
func (z *Zone) Replace(ctx context.Context, was, want dnsrecords.RecordSet) error {
	raw, err := z.raw(ctx, was.Name, was.Type)
	if err != nil {
		return err
	}
	now, err := set(was.Name, was.Type, raw)
	if err != nil {
		return err
	}
	if !now.Same(was) || now.TTL != was.TTL {
		return dnsrecords.Conflict(was, &now)
	}
	create, err := z.written(want)
	if err != nil {
		return err
	}
	batch := &types.ChangeBatch{Comment: aws.String("replumb")}
	if raw != nil {
		batch.Changes = append(batch.Changes, types.Change{Action: types.ChangeActionDelete, ResourceRecordSet: raw})
	}
	if len(want.Values) > 0 {
		batch.Changes = append(batch.Changes, types.Change{Action: types.ChangeActionCreate, ResourceRecordSet: create})
	}
	if len(batch.Changes) == 0 {
		return nil
	}
	out, err := z.api.ChangeResourceRecordSets(ctx, &awsroute53.ChangeResourceRecordSetsInput{HostedZoneId: &z.id, ChangeBatch: batch})
	var invalid *types.InvalidChangeBatch
	switch {
	case errors.As(err, &invalid):
		return z.refused(ctx, was, want, invalid)
	case err != nil:
		return z.explain(want.String(), "route53:ChangeResourceRecordSets", err)
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	z.change = aws.ToString(out.ChangeInfo.Id)
	return nil
}

func (z *Zone) written(want dnsrecords.RecordSet) (*types.ResourceRecordSet, error) {
	r := &types.ResourceRecordSet{Name: aws.String(want.Name), Type: types.RRType(want.Type)}
	for _, v := range want.Values {
		if !dnsrecords.IsAlias(v) {
			r.TTL = aws.Int64(int64(want.TTL / time.Second))
			r.ResourceRecords = append(r.ResourceRecords, types.ResourceRecord{Value: aws.String(v)})
			continue
		}
		a, err := dnsrecords.ParseAlias(v)
		if err != nil {
			return nil, err
		}
		r.AliasTarget = &types.AliasTarget{HostedZoneId: &a.Zone, DNSName: &a.Name, EvaluateTargetHealth: a.Health}
	}
	return r, nil
}

// refused tells a record changed by others from a batch that will never be taken.
func (z *Zone) refused(ctx context.Context, was, want dnsrecords.RecordSet, invalid *types.InvalidChangeBatch) error {
	now, err := z.Get(ctx, was.Name, was.Type)
	if err != nil {
		return dnsrecords.Conflict(was, nil)
	}
	if !now.Same(was) || now.TTL != was.TTL {
		return dnsrecords.Conflict(was, &now)
	}
	text := strings.Join(invalid.Messages, "; ")
	if text == "" {
		text = invalid.ErrorMessage()
	}
	hint := "is the name in that zone, and does no CNAME have it?"
	switch {
	case slices.ContainsFunc(want.Values, dnsrecords.IsAlias):
		hint = "the hosted zone of an alias is the load balancer's own, its CanonicalHostedZoneId, not that of the record"
	case want.Type == v1alpha1.RecordCNAME && was.Type != want.Type:
		hint = "a name that is a CNAME has no other records: delete those of other types"
	}
	return &dnsrecords.Error{
		Record: want.String(), Problem: fmt.Sprintf("hosted zone %s refused the change: %s", z.id, text), Err: invalid, Hint: hint,
	}
}

// Authoritative combines Route 53's status of the change with answers of the zone's servers; those
// of a private zone answer within its networks only.
func (z *Zone) Authoritative(ctx context.Context, name string, typ v1alpha1.RecordType) ([]dnsrecords.Answer, error) {
	record := dnsrecords.Title(name, typ)
	own := dnsrecords.Answer{Server: dnsrecords.NameServer{Name: "Route 53"}}
	status, err := z.status(ctx, record)
	if err != nil {
		return nil, err
	}
	if own.Set, err = z.Get(ctx, name, typ); err != nil {
		return nil, err
	}
	if status != types.ChangeStatusInsync {
		own.Err = fmt.Errorf("the change is %s", status)
	}
	hosts, err := z.nameServers(ctx, record)
	if err != nil || len(hosts) == 0 {
		return []dnsrecords.Answer{own}, err
	}
	servers, err := z.client.Locate(ctx, hosts)
	if err != nil {
		return nil, engine.NotYet("%s: %w", record, err)
	}
	return append([]dnsrecords.Answer{own}, z.client.Ask(ctx, servers, name, typ)...), nil
}

// status is that of this process' last change.
func (z *Zone) status(ctx context.Context, record string) (types.ChangeStatus, error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.change == "" {
		return types.ChangeStatusInsync, nil
	}
	out, err := z.api.GetChange(ctx, &awsroute53.GetChangeInput{Id: &z.change})
	if err != nil {
		return "", z.explain(record, "route53:GetChange", err)
	}
	if out.ChangeInfo.Status == types.ChangeStatusInsync {
		z.change = ""
	}
	return out.ChangeInfo.Status, nil
}

// nameServers are those of the zone; none, if it is private.
func (z *Zone) nameServers(ctx context.Context, record string) ([]string, error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.servers != nil {
		return z.servers, nil
	}
	out, err := z.api.GetHostedZone(ctx, &awsroute53.GetHostedZoneInput{Id: &z.id})
	if err != nil {
		return nil, z.explain(record, "route53:GetHostedZone", err)
	}
	z.servers = []string{}
	if out.DelegationSet != nil && (out.HostedZone.Config == nil || !out.HostedZone.Config.PrivateZone) {
		z.servers = out.DelegationSet.NameServers
	}
	return z.servers, nil
}
