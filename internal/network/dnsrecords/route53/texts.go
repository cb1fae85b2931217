package route53

import (
	"context"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsroute53 "github.com/aws/aws-sdk-go-v2/service/route53"
	"github.com/aws/aws-sdk-go-v2/service/route53/types"
	"github.com/miekg/dns"

	"github.com/replumb/replumb/internal/network/dnsrecords"
)

// mostTexts bounds the records of one name and type, each with its set identifier.
const mostTexts = 100

func (z *Zone) Texts(ctx context.Context, _, name string) ([]string, error) {
	out, err := z.api.ListResourceRecordSets(ctx, &awsroute53.ListResourceRecordSetsInput{
		HostedZoneId:    &z.id,
		StartRecordName: aws.String(dns.CanonicalName(name)),
		StartRecordType: types.RRTypeTxt,
		MaxItems:        aws.Int32(mostTexts),
	})
	if err != nil {
		return nil, z.explain(dnsrecords.Title(name, "TXT"), "route53:ListResourceRecordSets", err)
	}
	var all []string
	for _, r := range out.ResourceRecordSets {
		if spelled(r.Name) != dns.CanonicalName(name) || r.Type != types.RRTypeTxt {
			continue
		}
		for _, v := range r.ResourceRecords {
			all = append(all, unquoted(aws.ToString(v.Value)))
		}
	}
	return all, nil
}

// unquoted joins the quoted strings of a zone file's value.
func unquoted(value string) string {
	rr, err := dns.NewRR(". 0 IN TXT " + value)
	if t, ok := rr.(*dns.TXT); err == nil && ok {
		return strings.Join(t.Txt, "")
	}
	return value
}
