package haproxy

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// askTimeout is how long a process may take to answer.
const askTimeout = 5 * time.Second

// Ask sends a command to the socket at path, that of a process or of its master, and returns the answer.
func Ask(ctx context.Context, path, command string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return nil, err
		}
	}
	if _, err := fmt.Fprintln(conn, command); err != nil {
		return nil, err
	}
	// A master answers and then waits for the next command, unless there cannot be one.
	if err := conn.(*net.UnixConn).CloseWrite(); err != nil {
		return nil, err
	}
	return io.ReadAll(conn)
}

// Status is a server as a balancer sees it.
type Status struct {
	Backend string `json:"backend"`
	Server  string `json:"server"`
	Up      bool   `json:"up"`
	// Why is the last check's result, such as L4CON or L7OK.
	Why string `json:"why"`
	// Now are the connections there are, Total all there have been since the list of servers changed last.
	Now   int `json:"now"`
	Total int `json:"total"`
}

// Statuses reads the answer to `show stat`.
func Statuses(answer []byte) ([]Status, error) {
	table, err := csv.NewReader(strings.NewReader(strings.TrimPrefix(string(answer), "# "))).ReadAll()
	if err != nil || len(table) == 0 {
		return nil, errors.Join(errors.New("no table of servers"), err)
	}
	column := map[string]int{}
	for i, name := range table[0] {
		column[name] = i
	}
	var all []Status
	for _, row := range table[1:] {
		name := row[column["svname"]]
		if name == "FRONTEND" || name == "BACKEND" {
			continue
		}
		s := Status{
			Backend: row[column["pxname"]],
			Server:  name,
			Up:      strings.HasPrefix(row[column["status"]], "UP"),
			Why:     row[column["check_status"]],
		}
		s.Now, _ = strconv.Atoi(row[column["scur"]])
		s.Total, _ = strconv.Atoi(row[column["stot"]])
		all = append(all, s)
	}
	return all, nil
}
