package route53

import (
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/smithy-go"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/dnsrecords"
)

// explain adds what was refused and what to do. Errors that the SDK retries stay retryable.
func (z *Zone) explain(record, action string, err error) error {
	if retry.IsErrorRetryables(retry.DefaultRetryables).IsErrorRetryable(err) == aws.TrueTernary {
		return engine.NotYet("%s: Route 53: %w", record, err)
	}
	var api smithy.APIError
	if !errors.As(err, &api) {
		return &dnsrecords.Error{
			Record: record, Problem: fmt.Sprintf("Route 53 cannot be asked: %v", err), Err: err,
			Hint: "does replumb have credentials of AWS, by variables, a file or a role?",
		}
	}
	hint := "allow it " + action + " of the hosted zone"
	if api.ErrorCode() == "NoSuchHostedZone" {
		hint = "correct hostedZoneID, or use credentials of the account that has the zone"
	}
	return &dnsrecords.Error{
		Record: record, Problem: fmt.Sprintf("hosted zone %s: %s: %s", z.id, api.ErrorCode(), api.ErrorMessage()), Hint: hint, Err: err,
	}
}
