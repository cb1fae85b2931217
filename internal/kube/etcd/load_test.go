package etcd

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/replumb/replumb/internal/engine"
)

// says is the status of a member that follows a leader in a term.
func says(member, leader, term uint64, problems ...string) answer {
	return answer{status: &clientv3.StatusResponse{
		Header: &etcdserverpb.ResponseHeader{ClusterId: 7, MemberId: member, Revision: 5},
		Leader: leader, RaftTerm: term, RaftIndex: 20, RaftAppliedIndex: 19, Version: "3.6.8", Errors: problems,
	}}
}

func TestHear(t *testing.T) {
	alarm := (&etcdserverpb.AlarmMember{MemberID: 3, Alarm: etcdserverpb.AlarmType_NOSPACE}).String()
	stranger := says(2, 1, 4)
	stranger.status.Header.ClusterId = 8
	mute := says(2, 1, 4)
	mute.err = context.DeadlineExceeded
	for name, tt := range map[string]struct {
		answers   []answer
		leader    uint64
		complaint string
	}{
		"well":              {[]answer{says(1, 1, 4), says(2, 1, 4), says(3, 1, 4)}, 1, ""},
		"alarm":             {[]answer{says(1, 1, 4, alarm), says(2, 1, 4, alarm), says(3, 1, 4, alarm)}, 1, "member c has raised NOSPACE"},
		"other error":       {[]answer{says(1, 1, 4), says(2, 1, 4, "on fire"), says(3, 1, 4)}, 1, "member b is not healthy: on fire"},
		"no leader":         {[]answer{says(1, 0, 4), says(2, 0, 4), says(3, 0, 4)}, 0, "there is no leader"},
		"leader is silent":  {[]answer{{err: errors.New("gone")}, says(2, 1, 4), says(3, 1, 4)}, 0, "there is no leader"},
		"two leaders":       {[]answer{says(1, 1, 4), says(2, 2, 5), says(3, 2, 5)}, 2, "member a is not healthy: it follows member 1, and 2 leads"},
		"one is behind":     {[]answer{says(1, 1, 4), says(2, 0, 4), says(3, 1, 4)}, 1, "member b is not healthy: it knows no leader"},
		"wrong address":     {[]answer{says(1, 1, 4), says(1, 1, 4), says(3, 1, 4)}, 1, "member b is not healthy: its client URL is that of member 1"},
		"wrong cluster":     {[]answer{says(1, 1, 4), stranger, says(3, 1, 4)}, 1, "member b is not healthy: its client URL is that of another cluster, 8"},
		"reads nothing":     {[]answer{says(1, 1, 4), mute, says(3, 1, 4)}, 1, "member b is not healthy: it does not read: no answer in time"},
		"leader by mistake": {[]answer{says(2, 2, 4), says(2, 2, 4), says(3, 2, 4)}, 2, "member a is not healthy: its client URL is that of member 2"},
	} {
		c := &Membership{ID: 7, Members: []Member{{ID: 1, Name: "a"}, {ID: 2, Name: "b"}, {ID: 3, Name: "c"}}}
		c.hear(tt.answers)
		if c.Leader != tt.leader || c.Problem() != tt.complaint {
			t.Errorf("%s: %d leads, %q", name, c.Leader, c.Problem())
		}
	}
}

func TestParseAlarm(t *testing.T) {
	for text, want := range map[string]string{
		"memberID:10501334649042878790 alarm:NOSPACE ": "10501334649042878790 NOSPACE",
		"memberID:3  alarm:CORRUPT":                    "3 CORRUPT", // as another generator of Go writes it
		"etcdserver: no leader":                        "0 ",
	} {
		id, alarm := parseAlarm(text)
		if got := fmt.Sprintf("%d %s", id, alarm); got != want {
			t.Errorf("%q is %q", text, got)
		}
	}
}

func TestFailed(t *testing.T) {
	refused := `connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"`
	for _, tt := range []struct {
		err   error
		text  string
		again bool
	}{
		{rpctypes.ErrMemberLearnerNotReady, "x: can only promote a learner member which is in sync with leader", true},
		{rpctypes.ErrGRPCUnhealthy, "x: unhealthy cluster", true},
		{rpctypes.ErrMemberNotEnoughStarted, "x: re-configuration failed due to not enough started members", true},
		{rpctypes.ErrNoSpace, "x: mvcc: database space exceeded", false},
		{rpctypes.ErrPermissionDenied, "x: permission denied", false},
		{rpctypes.ErrCompacted, "x: mvcc: required revision has been compacted", false},
		{status.Error(codes.Unavailable, refused), "x: dial tcp 127.0.0.1:1: connect: connection refused", true},
		{context.DeadlineExceeded, "x: no answer in time", true},
		{errors.New("no such thing"), "x: no such thing", false},
	} {
		err := failed(tt.err, "x")
		if err.Error() != tt.text || engine.Retryable(err) != tt.again || !errors.Is(err, tt.err) {
			t.Errorf("%v: %q, tried again: %v", tt.err, err, engine.Retryable(err))
		}
	}
}

func TestCompare(t *testing.T) {
	for _, tt := range []struct {
		b     MemberHash
		equal bool
		again bool
	}{
		{MemberHash{"b", 1, 10, 2}, true, false},
		{MemberHash{"b", 2, 10, 2}, false, false},
		{MemberHash{"b", 1, 10, 3}, false, true},
		{MemberHash{"b", 1, 9, 2}, false, true},
	} {
		err := Compare([]MemberHash{{"a", 1, 10, 2}, tt.b})
		if (err == nil) != tt.equal || (err != nil && engine.Retryable(err) != tt.again) {
			t.Errorf("%+v: %v", tt.b, err)
		}
	}
}
